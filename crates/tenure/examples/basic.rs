//! One message in, one message out. `cargo run -p tenure --example basic`
//!
//! Runs in memory; set `TENURE_DSN` to `sqlite:jobs.db` or `postgres://…` for a real database.

use tenure::{Admin, Consumer, Producer, Store};

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let dsn = std::env::var("TENURE_DSN").unwrap_or_else(|_| ":memory:".to_owned());
    let store = Store::connect(&dsn).await?;
    store.install().await?;
    Admin::on(&store).get_or_create_queue("mail").await?;

    let producer = Producer::on(&store, "mail", "my-host", 1).await?;
    let sent = producer.enqueue(&serde_json::json!({ "to": "ada@example.com" })).await?;
    println!("enqueued message {} on {}", sent.id, store.backend_name());

    let consumer = Consumer::on(&store, "mail", "my-host", 2).await?;
    for message in consumer.dequeue().await? {
        println!("got {} in attempt {}", message.payload.value().unwrap_or_default(), message.read_ct);
        consumer.archive(&message).await?;
    }
    println!("in the archive: {}", store.archive().count().await?);
    Ok(())
}
