//! Many messages at a time: one statement in, one statement out. `cargo run -p tenure --example batch`

use std::time::Instant;

use serde::{Deserialize, Serialize};
use tenure::{Admin, Consumer, Producer, Store};

#[derive(Serialize, Deserialize)]
struct Thumbnail {
    picture: String,
    width: u32,
}

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let store = Store::connect(":memory:").await?;
    store.install().await?;
    Admin::on(&store).create_queue("thumbnails").await?;
    let producer = Producer::on(&store, "thumbnails", "my-host", 1).await?;
    let consumer = Consumer::on(&store, "thumbnails", "my-host", 2).await?;

    let started = Instant::now();
    let work: Vec<_> = (0..10_000).map(|n| Thumbnail { picture: format!("{n}.jpg"), width: 200 }).collect();
    // All or none: a payload that is too large would name its index, and nothing would be stored.
    let sent = producer.batch_enqueue(&work).await?;
    println!("{} messages in after {:?}", sent.len(), started.elapsed());

    let mut pixels = 0;
    loop {
        let messages = consumer.dequeue_with_options(500, 60).await?;
        if messages.is_empty() {
            break;
        }
        for message in &messages {
            pixels += message.json::<Thumbnail>()?.width;
        }
        consumer.delete_batch(&messages).await?;
    }
    println!("{pixels} pixels out after {:?}", started.elapsed());
    Ok(())
}
