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

async fn open() -> (tenure_store::conformance::Harness, Queue, tokio_postgres::Client) {
    let harness = support::postgres().await;
    let queue = harness.queue().await;
    let (client, connection) = tokio_postgres::connect(&support::postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    (harness, queue, client)
}

/// The schema of a store, from its DSN.
fn schema(dsn: &str) -> &str {
    dsn.split("schema=").nth(1).and_then(|rest| rest.split('&').next()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_leased_for_a_caller_that_has_gone_are_released_uncounted() {
    let (harness, queue, client) = open().await;
    harness.store.enqueue(&queue, None, vec![NewMessage::new("a"), NewMessage::new("b")]).await.unwrap();
    let lane = format!("\"{}\".lane", schema(&harness.dsn));
    client.batch_execute(&format!("begin; lock table {lane} in access exclusive mode")).await.unwrap();
    let (store, claim) = (harness.store.clone(), Claim::from_queue(&queue, 2));
    let caller = tokio::spawn(async move { store.claim(claim).await });
    // The claim is under way, and waits for the lock.
    let waits = format!("select count(*) from pg_locks where not granted and relation = '{lane}'::regclass");
    while client.query_one(&waits, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    client.batch_execute("rollback").await.unwrap();
    // The clock stands: no lease runs out.
    let mut taken = Vec::new();
    let claim = || Claim { wait: Duration::from_secs(5), ..Claim::from_queue(&queue, 2) };
    while taken.len() < 2 {
        let more = harness.store.claim(claim()).await.unwrap();
        assert!(!more.is_empty(), "messages stay leased to a caller that has gone");
        taken.extend(more);
    }
    assert!(taken.iter().all(|message| message.attempts == 1), "a lease that no caller received was counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_passes_over_rows_that_another_transaction_has_locked() {
    let (harness, queue, client) = open().await;
    let messages = (0..5).map(|n| NewMessage::new(n.to_string())).collect();
    let ids: Vec<i64> =
        harness.store.enqueue(&queue, None, messages).await.unwrap().iter().map(|answer| answer.id).collect();
    let lock = format!(
        "begin; select from \"{}\".message where id in ({}, {}) for update",
        schema(&harness.dsn),
        ids[0],
        ids[2]
    );
    client.batch_execute(&lock).await.unwrap();
    let claim = harness.store.claim(Claim::from_queue(&queue, 3));
    let taken = tokio::time::timeout(Duration::from_secs(5), claim).await.expect("the claim waits for a lock").unwrap();
    assert_eq!(taken.iter().map(|message| message.id).collect::<Vec<_>>(), [ids[1], ids[3], ids[4]]);
    client.batch_execute("rollback").await.unwrap();
    harness.advance(1_000);
    assert_eq!(harness.take(&queue, 9).await.len(), 2);
}
