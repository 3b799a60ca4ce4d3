//! What becomes of a message that cannot be handled, and how it gets another chance.
//! `cargo run -p tenure --example dead_letters`

use std::time::Duration;

use tenure::{Admin, Consumer, Delivery, Producer, RetryPolicy, Settings, Store};

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let store = Store::connect(":memory:").await?;
    store.install().await?;
    let admin = Admin::on(&store);
    admin.create_queue_with("invoices", Settings { max_attempts: Some(3), ..Settings::default() }).await?;
    Producer::on(&store, "invoices", "my-host", 1).await?.enqueue("invoice 4711").await?;

    let consumer = Consumer::on(&store, "invoices", "my-host", 2).await?;
    let broken = |_: Delivery| async { Err::<(), _>("the printer is on fire") };
    let quick = RetryPolicy { first: Duration::from_millis(50), ..RetryPolicy::default() };
    consumer.run(broken).retry(quick).until(tokio::time::sleep(Duration::from_secs(1))).await?;

    for dead in admin.list_dead("invoices", 10).await? {
        println!("message {} died after {} attempts: {}", dead.id, dead.read_ct, dead.reason.unwrap_or_default());
    }
    println!("replayed: {}", admin.replay_dead("invoices", None, 100).await?);

    let mended = |delivery: Delivery| async move {
        println!("printed {}, in attempt {}", delivery.json::<String>()?, delivery.read_ct);
        Ok::<_, tenure::Error>(())
    };
    consumer.run(mended).until(tokio::time::sleep(Duration::from_millis(500))).await?;
    println!("dead now: {}", admin.count_dead("invoices").await?);
    Ok(())
}
