//! Messages that wait for their time. `cargo run -p tenure --example delayed`

use std::time::{Duration, Instant};

use chrono::{TimeDelta, Utc};
use tenure::{Admin, Consumer, Producer, Store};

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let store = Store::connect(":memory:").await?;
    store.install().await?;
    Admin::on(&store).create_queue("reminders").await?;
    let producer = Producer::on(&store, "reminders", "my-host", 1).await?;
    let consumer = Consumer::on(&store, "reminders", "my-host", 2).await?;

    producer.enqueue_at("at a time", Utc::now() + TimeDelta::milliseconds(600)).await?;
    producer.enqueue_delayed("after a delay", Duration::from_millis(300)).await?;
    producer.enqueue("at once").await?;

    let started = Instant::now();
    for _ in 0..3 {
        // Waits for the next message instead of asking again and again.
        for message in consumer.dequeue_within(Duration::from_secs(5), 10, 30).await? {
            println!("{:>4} ms: {}", started.elapsed().as_millis(), message.json::<String>()?);
            consumer.delete(&message).await?;
        }
    }
    Ok(())
}
