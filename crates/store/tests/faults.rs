//! Connections die under load: nothing acknowledged is lost, nothing is completed twice, and nobody must be restarted.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure_cluster::{Cluster, Durability};
use tenure_store::conformance::numbered;
use tenure_store::conformance::statements::script;
use tenure_store::{Answer, Claim, Clock, Extension, Kind, NewMessage, Queue, Settings, Store};

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
    let mut kills = 0;
    while kills < 12 || seen.enqueued.lock().unwrap().len() <= 100 {
        kills += 1;
        assert!(kills < 1000, "only {} messages were enqueued under fire", seen.enqueued.lock().unwrap().len());
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
    let stats = store.lane_stats(queue.lanes[0]).await.unwrap();
    assert_eq!((stats.ready, stats.leased), (0, 0));
    assert!(done.values().all(|count| *count == 1), "a message was completed twice");
    let lost = enqueued.iter().filter(|id| !done.contains_key(id)).count();
    assert_eq!(lost, 0, "acknowledged messages were never reported done");
}

async fn store_with_queue(dsn: &str) -> (Store, Queue) {
    let store = Store::connect(dsn).await.unwrap();
    store.install().await.unwrap();
    let queue = store.queue_create("jobs", Settings::default()).await.unwrap();
    (store, queue)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statement_of_a_frozen_server_ends_in_time() {
    let cluster = Cluster::start(Durability::None).unwrap();
    // Nothing is prepared, so that the statement itself is what is not answered, whichever connection it gets.
    let dsn = format!("{}?statement_timeout=3&connect_timeout=3&pgbouncer=true", cluster.dsn());
    // What comes before is done without limits: a machine that stalls would exceed them.
    let (patient, queue) = store_with_queue(cluster.dsn()).await;
    patient.enqueue(&queue, None, numbered(2)).await.unwrap();
    let taken = patient.claim(Claim::from_queue(&queue, 2)).await.unwrap();
    let store = Store::connect(&dsn).await.unwrap();
    store.queue_get("jobs").await.unwrap();
    cluster.freeze().unwrap();
    let started = Instant::now();
    let error = store.enqueue(&queue, None, numbered(1)).await.unwrap_err();
    // Without the limit it is 30 s.
    assert!(started.elapsed() < Duration::from_secs(25), "{:?}", started.elapsed());
    assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    assert!(error.is_ambiguous(), "{error:?}");
    // The other connections are no better, and new ones are not made.
    let started = Instant::now();
    let error = store.queue_get("jobs").await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    cluster.thaw().unwrap();
    let fences: Vec<_> = taken.iter().map(tenure_store::Message::fence).collect();
    assert_eq!(store.complete(&fences).await.unwrap(), [Answer::Done, Answer::Done]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_of_a_statement_that_was_not_answered_is_not_used_again() {
    let schema = support::unique();
    let dsn = format!("{}?schema={schema}", support::postgres_dsn());
    let (_, queue) = store_with_queue(&dsn).await;
    // Only this side gives the statement up: the server goes on with it, as one that is frozen may do after a while.
    let unlimited = "pool_size=1&statement_timeout=1&options=-c%20statement_timeout%3D0";
    let store = Store::connect(&format!("{dsn}&{unlimited}")).await.unwrap();
    let mut locks = client().await;
    let lock = locks.transaction().await.unwrap();
    lock.batch_execute(&format!("lock table {schema}.message in exclusive mode")).await.unwrap();
    let error = store.enqueue(&queue, None, numbered(1)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    // The pool's only connection would still wait for the lock.
    let again = tokio::time::timeout(Duration::from_secs(20), store.queue_get("jobs")).await;
    again.expect("the call waits behind a statement that was given up").unwrap();
}

#[tokio::test]
async fn connection_of_a_dropped_call_is_closed() {
    let schema = support::unique();
    let name = format!("dropped-{schema}");
    let dsn = format!("{}?schema={schema}&pool_size=1&application_name={name}", support::postgres_dsn());
    let (store, queue) = store_with_queue(&dsn).await;
    let (mut locks, looks) = (client().await, client().await);
    let lock = locks.transaction().await.unwrap();
    lock.batch_execute(&format!("lock table {schema}.message in exclusive mode")).await.unwrap();
    let call = tokio::spawn({
        let (store, queue) = (store.clone(), queue.clone());
        async move { store.enqueue(&queue, None, numbered(1)).await }
    });
    while blocked(&looks, &name).await == 0 {
        assert!(!call.is_finished(), "the lock did not hold");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    // The pool has one connection: it would be the one with the unfinished statement, which may take 30 s.
    let started = Instant::now();
    store.queue_get("jobs").await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(15), "the call waited behind a statement of another one");
    // The server notices as well, although its process waits for the lock.
    let version = looks.query_one("select current_setting('server_version_num')::int", &[]).await.unwrap();
    while version.get::<_, i32>(0) >= 140_000 && blocked(&looks, &name).await > 0 {
        assert!(started.elapsed() < Duration::from_secs(25), "the server kept the session of a closed connection");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn client() -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&support::postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// How many sessions of this name wait for a lock.
async fn blocked(client: &tokio_postgres::Client, name: &str) -> i64 {
    let text = "select count(*) from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock'";
    client.query_one(text, &[&name]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_go_to_the_standby_when_the_primary_freezes() {
    let primary = Cluster::start(Durability::None).unwrap();
    let (old, new) = (primary.dsn().to_owned(), primary.start_standby().unwrap());
    let server = |dsn: &str| dsn.trim_start_matches("postgres://postgres@").trim_end_matches("/postgres").to_owned();
    let dsn = format!(
        "postgres://postgres@{},{}/postgres?target_session_attrs=read-write&statement_timeout=2&connect_timeout=2",
        server(&old),
        server(new.dsn())
    );
    let (store, queue) = store_with_queue(&dsn).await;
    let mut acknowledged: Vec<i64> =
        store.enqueue(&queue, None, numbered(20)).await.unwrap().iter().map(|answer| answer.id).collect();
    // Several connections, so that one failed call does not find all of them.
    futures_util::future::join_all((0..8).map(|_| store.queue_get("jobs"))).await;
    let taken = store.claim(Claim::from_queue(&queue, 5)).await.unwrap();
    primary.freeze().unwrap();
    let started = Instant::now();
    let waiting = tokio::spawn({
        let (store, fences) = (store.clone(), taken.iter().map(tenure_store::Message::fence).collect::<Vec<_>>());
        async move { store.complete(&fences).await }
    });
    new.promote().unwrap();
    let enqueued = loop {
        match store.enqueue(&queue, None, numbered(1)).await {
            Ok(answers) => break answers[0].id,
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        assert!(started.elapsed() < Duration::from_secs(30), "no call reached the new primary");
    };
    acknowledged.push(enqueued);
    let answers = waiting.await.unwrap().unwrap();
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert!(answers.iter().all(|answer| *answer == Answer::Done), "{answers:?}");
    let mut claim = Claim::from_queue(&queue, 100);
    claim.lease = Some(Duration::from_secs(60));
    let left: Vec<i64> = store.claim(claim).await.unwrap().iter().map(|message| message.id).collect();
    let done: Vec<i64> = taken.iter().map(|message| message.id).collect();
    let lost = acknowledged.iter().filter(|id| !left.contains(id) && !done.contains(id)).count();
    assert_eq!(lost, 0, "acknowledged messages were lost");
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
    let taken =
        tokio::time::timeout(Duration::from_secs(20), claim).await.expect("the claim waits for a lock").unwrap();
    assert_eq!(taken.iter().map(|message| message.id).collect::<Vec<_>>(), [ids[1], ids[3], ids[4]]);
    client.batch_execute("rollback").await.unwrap();
    harness.advance(1_000);
    assert_eq!(harness.take(&queue, 9).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_does_not_wait_for_rows_that_another_transaction_has_locked() {
    let (harness, queue, client) = open().await;
    harness.store.enqueue(&queue, None, numbered(3)).await.unwrap();
    let taken = harness.take(&queue, 3).await;
    let fences: Vec<_> = taken.iter().map(tenure_store::Message::fence).collect();
    let complete = format!("begin; delete from \"{}\".message where id = {}", schema(&harness.dsn), taken[1].id);
    client.batch_execute(&complete).await.unwrap();
    let extra = Duration::from_secs(30);
    let extension = harness.store.extend_unlocked(&fences, extra);
    let extensions =
        tokio::time::timeout(Duration::from_secs(20), extension).await.expect("it waits for a lock").unwrap();
    let extended = |n: usize| Extension::Until(taken[n].leased_until + 30_000_000);
    assert_eq!(extensions, [extended(0), Extension::Locked, extended(2)]);
    // The lease is not refused either: who wants an answer for all gets it when the other transaction has ended.
    let waiting = tokio::spawn({
        let (store, fences) = (harness.store.clone(), fences.clone());
        async move { store.extend(&fences, extra).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    client.batch_execute("rollback").await.unwrap();
    let until: Vec<_> = waiting.await.unwrap().unwrap().into_iter().map(Option::unwrap).collect();
    assert_eq!(until[1], taken[1].leased_until + 30_000_000);
}
