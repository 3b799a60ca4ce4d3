//! A worker that runs until it is told to stop, and then ends in order. `cargo run -p tenure --example run`
//!
//! Stops at Ctrl-C, or when no message is left so that it can be tried without.

use std::time::Duration;

use tenure::{Admin, Consumer, Delivery, Outcome, Producer, RetryPolicy, Store};

async fn handle(job: Delivery) -> Result<Outcome, Box<dyn std::error::Error + Send + Sync>> {
    let number: u32 = job.json()?;
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(20)) => {}
        // Long work listens: another consumer will get the message.
        () = job.lease_lost().cancelled() => return Err("the lease was lost".into()),
    }
    match number {
        n if n % 50 == 13 => Ok(Outcome::Bury("thirteen brings bad luck".to_owned())),
        n if n % 10 == 7 && job.read_ct == 1 => Err("not at the first attempt".into()),
        _ => Ok(Outcome::Complete),
    }
}

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let store = Store::connect(":memory:").await?;
    store.install().await?;
    Admin::on(&store).create_queue("jobs").await?;
    Producer::on(&store, "jobs", "my-host", 1).await?.batch_enqueue(&(0..200).collect::<Vec<u32>>()).await?;

    let admin = Admin::on(&store);
    let empty = async {
        while admin.get_queue_metrics("jobs").await?.total_messages > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok::<_, tenure::Error>(())
    };
    let stop = async {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => println!("stopping"),
            done = empty => {
                done?;
                println!("no message is left");
            }
        }
        Ok::<_, tenure::Error>(())
    };
    let consumer = Consumer::on(&store, "jobs", "my-host", 2).await?;
    let summary = consumer
        .run(handle)
        .concurrency(16)
        .retry(RetryPolicy { first: Duration::from_millis(200), ..RetryPolicy::default() })
        .grace(Duration::from_secs(10))
        .until(stop)
        .await?;
    consumer.shutdown().await?;
    println!("{} completed, {} tried again, {} buried", summary.completed, summary.retried, summary.buried);
    Ok(())
}
