//! The same work through the kernel's own acts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_store::{Claim, Due, Fence, Message, NewMessage, Queue, Settings, Store};
use tokio::task::JoinSet;

use crate::Result;
use crate::bare::finish;
use crate::load::{Measured, Meter, Paced, made_at, payload};

/// The DSN of our schema.
pub(crate) fn schema(dsn: &str) -> String {
    format!("{dsn}?schema=bench&pool_size=12")
}

/// An empty store with one queue, from the same calm as bare SQL's.
pub(crate) async fn fresh(dsn: &str) -> Result<(Store, Queue)> {
    crate::bare::connect(dsn).await?.batch_execute("drop schema if exists bench cascade").await?;
    let created = create(&schema(dsn)).await?;
    settle(dsn).await?;
    Ok(created)
}

pub(crate) async fn create(dsn: &str) -> Result<(Store, Queue)> {
    let store = Store::connect(dsn).await?;
    store.install().await?;
    let queue =
        store.queue_create("bench", Settings { lease: Duration::from_secs(600), ..Settings::default() }).await?;
    Ok((store, queue))
}

pub(crate) async fn fill(store: &Store, queue: &Queue, messages: u64, due: Option<Due>) -> Result<()> {
    for batch in 0..messages / 1000 {
        let batch = (0..1000).map(|n| NewMessage { due, ..NewMessage::new(payload(batch * 1000 + n)) }).collect();
        store.enqueue(queue, None, batch).await?;
    }
    Ok(())
}

/// A backlog of one key, or of none.
pub(crate) async fn fill_keyed(store: &Store, queue: &Queue, messages: u64, key: Option<&str>) -> Result<()> {
    let keyed = |n| NewMessage { key: key.map(str::to_owned), ..NewMessage::new(payload(n)) };
    for batch in 0..messages / 1000 {
        store.enqueue(queue, None, (0..1000).map(|n| keyed(batch * 1000 + n)).collect()).await?;
    }
    Ok(())
}

/// Drains a backlog of keys: lease a key's batch, complete it whole.
pub(crate) async fn drain_keys(store: &Store, queue: &Queue, messages: u64) -> Result<Measured> {
    let meter = Meter::new(Duration::MAX, messages);
    while meter.count() < messages {
        let batch =
            store.claim_key(&queue.lanes, None, None, Duration::from_secs(5)).await?.ok_or("a key is missing")?;
        store.key_complete(batch.token).await?;
        meter.done(batch.messages.len());
    }
    Ok(meter.measured())
}

/// Settles the database after a fill, so that the measurement starts from the same place as bare SQL's.
pub(crate) async fn settle(dsn: &str) -> Result<()> {
    Ok(crate::bare::connect(dsn).await?.batch_execute("analyze; checkpoint").await?)
}

/// Single enqueues by concurrent callers.
pub(crate) async fn enqueue_single(store: &Store, queue: &Queue, callers: usize, seconds: f64) -> Result<Measured> {
    let meter = Meter::new(Duration::from_secs_f64(seconds), u64::MAX);
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (meter, store, queue) = (meter.clone(), store.clone(), queue.clone());
        tasks.spawn(async move {
            while meter.running() {
                let started = Instant::now();
                store.enqueue(&queue, None, vec![NewMessage::new(payload(meter.next()))]).await?;
                meter.latency(started.elapsed().as_micros() as u64);
                meter.done(1);
            }
            Result::Ok(())
        });
    }
    finish(tasks).await?;
    Ok(meter.measured())
}

/// Batches of 1000.
pub(crate) async fn enqueue_bulk(store: &Store, queue: &Queue, seconds: f64) -> Result<Measured> {
    let meter = Meter::new(Duration::from_secs_f64(seconds), u64::MAX);
    while meter.running() {
        let batch = (0..1000).map(|_| NewMessage::new(payload(meter.next()))).collect();
        store.enqueue(queue, None, batch).await?;
        meter.done(1000);
    }
    Ok(meter.measured())
}

/// Claim, then complete, by concurrent consumers.
pub(crate) async fn drain(
    store: &Store,
    queue: &Queue,
    consumers: usize,
    batch: usize,
    seconds: f64,
    messages: u64,
) -> Result<Measured> {
    let meter = Meter::new(Duration::from_secs_f64(seconds), messages);
    let mut tasks = JoinSet::new();
    for _ in 0..consumers {
        let (meter, store, queue) = (meter.clone(), store.clone(), queue.clone());
        tasks.spawn(async move {
            while meter.running() {
                let messages = store.claim(Claim::from_queue(&queue, batch)).await?;
                if messages.is_empty() {
                    break;
                }
                let fences: Vec<Fence> = messages.iter().map(Message::fence).collect();
                store.complete(&fences).await?;
                meter.done(fences.len());
            }
            Result::Ok(())
        });
    }
    finish(tasks).await?;
    Ok(meter.measured())
}

/// Producers and consumers at a pace, or as fast as they can; the latency is from before the enqueue to the delivery.
pub(crate) async fn paced(store: &Store, queue: &Queue, paced: Paced) -> Result<Measured> {
    warm_up(store, queue, paced.producers.max(paced.consumers)).await?;
    let produce = {
        let (store, queue) = (store.clone(), queue.clone());
        move |n| {
            let (store, queue) = (store.clone(), queue.clone());
            async move {
                store.enqueue(&queue, None, vec![NewMessage::new(payload(n))]).await?;
                Ok(())
            }
        }
    };
    let claim = Claim { wait: Duration::from_millis(200), ..Claim::from_queue(queue, 1) };
    let store = store.clone();
    let consume = move |meter: Arc<Meter>| {
        let (store, claim) = (store.clone(), claim.clone());
        async move {
            let messages = store.claim(claim).await?;
            for message in &messages {
                meter.since(made_at(&message.payload));
            }
            let fences: Vec<Fence> = messages.iter().map(Message::fence).collect();
            store.complete(&fences).await?;
            meter.done(fences.len());
            Ok(())
        }
    };
    paced.run(produce, consume).await
}

/// Opens the connections that the measurement will use.
async fn warm_up(store: &Store, queue: &Queue, callers: usize) -> Result<()> {
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (store, queue) = (store.clone(), queue.clone());
        tasks.spawn(async move {
            for n in 0..20 {
                store.enqueue(&queue, None, vec![NewMessage::new(payload(n))]).await?;
                for message in store.claim(Claim::from_queue(&queue, 1)).await? {
                    store.complete(&[message.fence()]).await?;
                }
            }
            Result::Ok(())
        });
    }
    finish(tasks).await?;
    drain(store, queue, 1, 1000, 10.0, u64::MAX).await?;
    Ok(())
}
