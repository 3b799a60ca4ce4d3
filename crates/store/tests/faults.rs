//! Connections die under load: nothing acknowledged is lost, nothing is completed twice, and nobody must be restarted.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_store::conformance::statements::script;
use tenure_store::{Answer, Claim, Clock, NewMessage, Queue, Settings, Store};

/// What was acknowledged, and how often each message was reported done.
#[derive(Default)]
struct Seen {
    enqueued: Mutex<Vec<i64>>,
    done: Mutex<BTreeMap<i64, usize>>,
    stop: AtomicBool,
}

async fn produce(store: Store, queue: Queue, seen: Arc<Seen>) {
    while !seen.stop.load(Ordering::Relaxed) {
        match store.enqueue(&queue, None, vec![NewMessage::new("x"), NewMessage::new("y")]).await {
            Ok(answers) => seen.enqueued.lock().unwrap().extend(answers.iter().map(|answer| answer.id)),
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    }
}

async fn consume(store: Store, queue: Queue, seen: Arc<Seen>) {
    let claim = Claim { wait: Duration::from_millis(500), ..Claim::from_queue(&queue, 7) };
    loop {
        let messages = match store.claim(claim.clone()).await {
            Ok(messages) => messages,
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                continue;
            }
        };
        if messages.is_empty() && seen.stop.load(Ordering::Relaxed) {
            return;
        }
        for message in messages {
            match store.complete(&[message.fence()]).await {
                Ok(answers) if matches!(answers[0], Answer::Done | Answer::Already) => {
                    *seen.done.lock().unwrap().entry(message.id).or_default() += 1;
                }
                Ok(_) => {}
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminated_connections_lose_nothing_and_double_nothing() {
    let schema = support::unique();
    let name = format!("victim-{schema}");
    let dsn = format!("{}?schema={schema}&pool_size=6&application_name={name}", support::postgres_dsn());
    let store = Store::connect_with_clock(&dsn, Clock::database()).await.unwrap();
    store.install().await.unwrap();
    let settings = Settings { lease: Duration::from_secs(2), ..Settings::default() };
    let queue = store.queue_create("jobs", settings).await.unwrap();
    let seen = Arc::new(Seen::default());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..6 {
        tasks.spawn(produce(store.clone(), queue.clone(), seen.clone()));
        tasks.spawn(consume(store.clone(), queue.clone(), seen.clone()));
    }
    let killer = Store::connect(&support::postgres_dsn()).await.unwrap();
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        let kill = format!(
            "do $$ begin perform pg_terminate_backend(pid) from pg_stat_activity where application_name = '{name}'; end $$"
        );
        script(&killer, &kill).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    seen.stop.store(true, Ordering::Relaxed);
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    // What was leased by a claim whose answer was lost comes back when its lease runs out.
    let late = Arc::new(Seen { stop: true.into(), ..Seen::default() });
    tokio::time::sleep(Duration::from_secs(3)).await;
    consume(store.clone(), queue.clone(), late.clone()).await;
    let mut done = seen.done.lock().unwrap().clone();
    for (id, count) in late.done.lock().unwrap().iter() {
        *done.entry(*id).or_default() += count;
    }
    let enqueued = seen.enqueued.lock().unwrap().clone();
    assert!(enqueued.len() > 100, "only {} messages were enqueued under fire", enqueued.len());
    let stats = store.lane_stats(queue.lanes[0]).await.unwrap();
    assert_eq!((stats.ready, stats.leased), (0, 0));
    assert!(done.values().all(|count| *count == 1), "a message was completed twice");
    let lost = enqueued.iter().filter(|id| !done.contains_key(id)).count();
    assert_eq!(lost, 0, "acknowledged messages were never reported done");
}
