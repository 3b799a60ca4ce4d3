//! PostgreSQL crashes and comes back under a running producer and consumer: both go on without being restarted, nothing
//! that was acknowledged is lost, and nothing completes twice.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::{Admin, Config, Consumer, Delivery, Disposition, Error, Producer, Settings};
use tenure_cluster::{Cluster, Durability};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_postgres_loses_nothing_and_doubles_nothing() {
    // Durable: what was acknowledged must survive the crash.
    let cluster = Cluster::start(Durability::Full).unwrap();
    let config = Config { heartbeat_interval_seconds: 1, ..Config::from_dsn(cluster.dsn()) };
    let cluster = Arc::new(Mutex::new(cluster));
    let admin = Admin::new(&config).await.unwrap();
    admin.install().await.unwrap();
    let settings = Settings { retain_completed: Some(Duration::from_secs(3600)), ..Settings::default() };
    admin.create_queue_with("jobs", settings).await.unwrap();
    let producer = Arc::new(Producer::new(&config, "jobs", "host", 1).await.unwrap());
    let consumer = Consumer::new(&config, "jobs", "host", 2).await.unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicUsize::new(0));
    let producing = tokio::spawn(produce(producer, stop.clone(), count.clone()));
    let delivered = Arc::new(Mutex::new(BTreeSet::new()));
    let handled = delivered.clone();
    let handle = move |delivery: Delivery| {
        let handled = handled.clone();
        async move {
            handled.lock().unwrap().insert(delivery.id);
            Ok::<_, Error>(())
        }
    };
    let crashing = cluster.clone();
    let crashes = tokio::task::spawn_blocking(move || {
        for away in [Duration::ZERO, Duration::from_secs(2)] {
            wait_for_more(&count);
            crashing.lock().unwrap().crash_and_restart(away).unwrap();
        }
        wait_for_more(&count);
    });
    let acknowledged = Arc::new(Mutex::new(BTreeSet::new()));
    let (log, noted) = (delivered.clone(), acknowledged.clone());
    let until = async move {
        crashes.await.unwrap();
        stop.store(true, Ordering::SeqCst);
        let ids = producing.await.unwrap();
        *noted.lock().unwrap() = ids.clone();
        // Everything that was acknowledged is delivered, or comes again when a lease that was cut off runs out.
        let patience = Instant::now();
        while !ids.iter().all(|id| log.lock().unwrap().contains(id)) {
            assert!(patience.elapsed() < Duration::from_secs(120), "acknowledged messages were not delivered");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let summary = consumer.run(handle).lease(Duration::from_secs(8)).until(until).await.unwrap();

    let acknowledged = acknowledged.lock().unwrap().clone();
    let archived = admin.store().archive().list(1_000_000, 0).await.unwrap();
    assert!(archived.iter().all(|message| message.disposition == Disposition::Completed));
    let completed: BTreeSet<i64> = archived.iter().map(|message| message.id).collect();
    let lost: Vec<_> = acknowledged.difference(&completed).collect();
    assert!(lost.is_empty(), "{} of {} were not completed: {lost:?}", lost.len(), acknowledged.len());
    assert_eq!(summary.completed, completed.len() as u64, "each completion counts once: {summary:?}");
}

/// Waits until so many messages were acknowledged since now that a crash means something.
fn wait_for_more(count: &AtomicUsize) {
    let (started, before) = (Instant::now(), count.load(Ordering::SeqCst));
    while count.load(Ordering::SeqCst) < before + 50 {
        assert!(started.elapsed() < Duration::from_secs(120), "the producer does not go on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Enqueues until told to stop; the ids that were acknowledged. An error is not the end.
async fn produce(producer: Arc<Producer>, stop: Arc<AtomicBool>, count: Arc<AtomicUsize>) -> BTreeSet<i64> {
    let mut acknowledged = BTreeSet::new();
    let mut n = 0;
    while !stop.load(Ordering::SeqCst) {
        n += 1;
        match producer.enqueue(&n).await {
            Ok(message) => {
                assert!(acknowledged.insert(message.id));
                count.fetch_add(1, Ordering::SeqCst);
            }
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    acknowledged
}
