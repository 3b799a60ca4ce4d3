//! Orders that are priced, packed, approved and shipped. `cargo run -p tenure-duroxide --example orders`
//!
//! Runs in memory; name a real database as `sqlite:orders.db` or `postgres://…` after `--`.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duroxide::runtime::Runtime;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus};
use tenure_duroxide::TenureProvider;

/// How long the client waits for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// An activity: ordinary code, run at least once. A letter costs one.
async fn price(_: ActivityContext, item: String) -> Result<String, String> {
    Ok(item.len().to_string())
}

async fn seal(_: ActivityContext, items: String) -> Result<String, String> {
    Ok(format!("a parcel of {}", items.replace(',', " and ")))
}

/// An orchestration: every `await` is remembered, so that a restart goes on where this one stopped.
async fn order(ctx: OrchestrationContext, items: String) -> Result<String, String> {
    // Fan out, fan in: all items are priced at the same time.
    let prices: Vec<_> = items.split(',').map(|item| ctx.schedule_activity("Price", item)).collect();
    let mut total = 0;
    for price in ctx.join(prices).await {
        total += price?.parse::<usize>().map_err(|error| error.to_string())?;
    }

    // A timer that outlives the process.
    ctx.schedule_timer(Duration::from_millis(50)).await;

    // An orchestration of its own, with its own history.
    let parcel = ctx.schedule_sub_orchestration("Pack", items).await?;

    // Somebody outside decides. The status and the wait are committed together: who sees the one can rely on the other.
    ctx.set_custom_status("waiting for approval");
    let decision = ctx.schedule_wait("Approval").await;
    Ok(format!("{parcel} for {total}: {decision}"))
}

async fn pack(ctx: OrchestrationContext, items: String) -> Result<String, String> {
    ctx.schedule_activity("Seal", items).await
}

/// Goes on as a new execution with an empty history, as everything that runs for ever should.
async fn count(ctx: OrchestrationContext, days: String) -> Result<String, String> {
    let days: u32 = days.parse().map_err(|_| format!("'{days}' is not a number"))?;
    if days < 2 {
        return ctx.continue_as_new((days + 1).to_string()).await;
    }
    Ok(format!("{days} days counted"))
}

/// Waits for the end of an instance.
async fn result(client: &Client, instance: &str) -> Result<String, Box<dyn Error>> {
    match client.wait_for_orchestration(instance, PATIENCE).await? {
        OrchestrationStatus::Completed { output, .. } => {
            println!("{instance}: {output}");
            Ok(output)
        }
        other => Err(format!("{instance} did not complete: {other:?}").into()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let dsn = std::env::args().nth(1).unwrap_or_else(|| "sqlite::memory:".to_owned());
    let store = Arc::new(TenureProvider::new(&dsn).await?);

    let activities = ActivityRegistry::builder().register("Price", price).register("Seal", seal).build();
    let orchestrations = OrchestrationRegistry::builder()
        .register("Order", order)
        .register("Pack", pack)
        .register("Count", count)
        .build();
    let runtime = Runtime::start_with_store(store.clone(), activities, orchestrations).await;
    let client = Client::new(store);

    // An instance is started once: each run has names of its own.
    let run = format!("{}-{}", std::process::id(), SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros());

    let order = format!("order-{run}");
    client.start_orchestration(&order, "Order", "apple,pear").await?;
    // An event that comes before somebody waits for it is dropped: wait until the order says that it does.
    client.wait_for_status_change(&order, 0, Duration::from_millis(10), PATIENCE).await?;
    client.raise_event(&order, "Approval", "approved").await?;
    assert_eq!(result(&client, &order).await?, "a parcel of apple and pear for 9: approved");

    let count = format!("count-{run}");
    client.start_orchestration(&count, "Count", "0").await?;
    assert_eq!(result(&client, &count).await?, "2 days counted");
    assert_eq!(client.list_executions(&count).await?, [1, 2, 3]);

    runtime.shutdown(None).await;
    Ok(())
}
