//! Ordered groups: messages of one key together, in order, to one holder at a time.
//! `cargo run -p tenure --example keys`

use tenure::{Admin, MessageQueue, Store};

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let store = Store::connect(":memory:").await?;
    store.install().await?;
    Admin::on(&store).create_queue("orders").await?;
    let queue = MessageQueue::on(&store);
    for (order, event) in [("order-1", "created"), ("order-2", "created"), ("order-1", "paid"), ("order-1", "sent")] {
        queue.enqueue("orders", order, event, None).await?;
    }

    let first = queue.dequeue_batch("orders").await?.expect("an order is free");
    let texts: Vec<_> = first.messages.iter().map(|m| String::from_utf8_lossy(m.payload.as_bytes())).collect();
    println!("{}: {}", first.routing_key, texts.join(", "));

    // While order-1 is held, what arrives for it waits; other orders go on.
    queue.enqueue("orders", "order-1", "returned", None).await?;
    let second = queue.dequeue_batch("orders").await?.expect("another order is free");
    println!("{}: {} message", second.routing_key, second.messages.len());
    queue.ack(&second.lock_token).await?;
    assert!(queue.dequeue_batch("orders").await?.is_none());

    queue.ack(&first.lock_token).await?;
    let third = queue.dequeue_batch("orders").await?.expect("order-1 is free again");
    println!("{} again: {} message", third.routing_key, third.messages.len());
    // Not now: no consumer gets this order for a minute.
    queue.abandon(&third.lock_token, Some(60.into())).await?;
    Ok(())
}
