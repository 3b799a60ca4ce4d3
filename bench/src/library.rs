//! The library beside the kernel it stands on: what the faces of a producer and of a consumer cost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::{Config, Consumer, Delivery, EnqueueOptions, Producer, Store, Summary};
use tokio::task::JoinSet;

use crate::bare::finish;
use crate::load::{Measured, Meter, payload};
use crate::{Result, ours};

fn over(kernel: tenure_store::Store) -> Store {
    Store::from_kernel(kernel, Config::from_dsn("bench"))
}

/// Single enqueues by concurrent callers of one producer.
pub(crate) async fn enqueue_single(dsn: &str, callers: usize, seconds: f64) -> Result<Measured> {
    let (kernel, _) = ours::fresh(dsn).await?;
    let producer = Arc::new(Producer::on(&over(kernel), "bench", "host", 1).await?);
    let meter = Meter::new(Duration::from_secs_f64(seconds), u64::MAX);
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (meter, producer) = (meter.clone(), producer.clone());
        tasks.spawn(async move {
            let options = EnqueueOptions::default();
            while meter.running() {
                let started = Instant::now();
                producer.enqueue_bytes(payload(meter.next()), &options).await?;
                meter.latency(started.elapsed().as_micros() as u64);
                meter.done(1);
            }
            Result::Ok(())
        });
    }
    finish(tasks).await?;
    Ok(meter.measured())
}

/// A backlog handled by `Consumer::run`, from its first delivery to its last completion.
pub(crate) async fn drain(dsn: &str, concurrency: usize, messages: u64) -> Result<Measured> {
    let consumer = backlog(dsn, None, messages).await?;
    let (summary, measured) = handle(&consumer, concurrency, Duration::ZERO, None, messages).await?;
    assert_eq!(summary.completed, messages, "every message is completed once");
    Ok(measured)
}

/// The same with handlers that take their time, under a lease that lasts or one that must be extended while they work.
pub(crate) async fn run_for(dsn: &str, work: Duration, lease: Duration, messages: u64) -> Result<Measured> {
    let consumer = backlog(dsn, None, messages).await?;
    let (summary, measured) = handle(&consumer, 512, work, Some(lease), messages).await?;
    assert_eq!((summary.completed, summary.lost), (messages, 0), "every message is completed once");
    Ok(measured)
}

/// The first messages of a backlog, handled one after the other: of one key, or without a key.
pub(crate) async fn one_by_one(dsn: &str, key: Option<&str>, messages: u64, handled: u64) -> Result<Measured> {
    let consumer = backlog(dsn, key, messages).await?;
    let (summary, measured) = handle(&consumer, 1, Duration::ZERO, None, handled).await?;
    assert_eq!((summary.buried, summary.lost), (0, 0), "no message is lost or dies");
    Ok(measured)
}

/// A whole backlog of one key with the settings that a loop has by itself, to its last message.
pub(crate) async fn whole_key(dsn: &str, messages: u64) -> Result<Measured> {
    let consumer = backlog(dsn, Some("k"), messages).await?;
    let (summary, measured) = handle(&consumer, 16, Duration::ZERO, None, messages).await?;
    assert_eq!((summary.completed, summary.buried, summary.lost), (messages, 0, 0), "every message is completed once");
    Ok(measured)
}

/// A consumer of a queue with a backlog, of one key or of none.
async fn backlog(dsn: &str, key: Option<&str>, messages: u64) -> Result<Consumer> {
    let (kernel, queue) = ours::fresh(dsn).await?;
    ours::fill_keyed(&kernel, &queue, messages, key).await?;
    ours::settle(dsn).await?;
    Ok(Consumer::on(&over(kernel), "bench", "host", 1).await?)
}

/// Runs a loop until its handlers, which sleep for `work`, have been called so often.
async fn handle(
    consumer: &Consumer,
    concurrency: usize,
    work: Duration,
    lease: Option<Duration>,
    messages: u64,
) -> Result<(Summary, Measured)> {
    let meter = Meter::new(Duration::MAX, messages);
    let handled = meter.clone();
    let handle = move |_: Delivery| {
        let handled = handled.clone();
        async move {
            if !work.is_zero() {
                tokio::time::sleep(work).await;
            }
            handled.done(1);
            Ok::<_, tenure::Error>(())
        }
    };
    let counted = async {
        while meter.count() < messages {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let mut run = consumer.run(handle).concurrency(concurrency).until(counted);
    if let Some(lease) = lease {
        run = run.lease(lease);
    }
    let summary = run.await?;
    let mut measured = meter.measured();
    measured.rate = messages as f64 / meter.elapsed().as_secs_f64();
    Ok((summary, measured))
}

/// A backlog taken one message at a time by consumers that each are a worker of their own.
pub(crate) async fn dequeue_single(dsn: &str, consumers: i32, seconds: f64, messages: u64) -> Result<Measured> {
    let (kernel, queue) = ours::fresh(dsn).await?;
    ours::fill(&kernel, &queue, messages, None).await?;
    ours::settle(dsn).await?;
    let store = over(kernel);
    let mut all = Vec::new();
    for port in 0..consumers {
        all.push(Consumer::on(&store, "bench", "host", port).await?);
    }
    let meter = Meter::new(Duration::from_secs_f64(seconds), messages);
    let mut tasks = JoinSet::new();
    for consumer in all {
        let meter = meter.clone();
        tasks.spawn(async move {
            while meter.running() {
                let Some(message) = consumer.dequeue_with_options(1, 60).await?.pop() else { break };
                consumer.complete(&message).await?;
                meter.done(1);
            }
            Result::Ok(())
        });
    }
    finish(tasks).await?;
    Ok(meter.measured())
}

/// The latency of dequeueing one message and archiving it, at a backlog.
pub(crate) async fn dequeue_at(dsn: &str, backlog: u64) -> Result<Measured> {
    let (kernel, queue) = ours::fresh(dsn).await?;
    ours::fill(&kernel, &queue, backlog.max(1000), None).await?;
    let store = over(kernel);
    let consumer = Consumer::on(&store, "bench", "host", 1).await?;
    if backlog < 1000 {
        let surplus = consumer.dequeue_with_options((1000 - backlog) as usize, 600).await?;
        consumer.delete_batch(&surplus).await?;
    }
    ours::settle(dsn).await?;
    let meter = Meter::new(Duration::MAX, u64::MAX);
    for _ in 0..90 {
        let started = Instant::now();
        let message = consumer.dequeue_with_options(1, 60).await?;
        meter.latency(started.elapsed().as_micros() as u64);
        consumer.delete(&message[0]).await?;
        meter.done(1);
    }
    Ok(meter.measured())
}
