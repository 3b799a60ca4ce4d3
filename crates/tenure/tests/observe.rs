//! What the library tells `metrics`: every verb, by queue, and never a payload or a DSN.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeMap;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tenure::{Admin, Consumer, Delivery, MessageQueue, Producer, Store};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verb_is_counted_by_queue_and_nothing_secret_is_told() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let dsn = folder.path().join("hidden.db").display().to_string();
    let store = Store::connect(&dsn).await.unwrap();
    store.install().await.unwrap();
    Admin::on(&store).create_queue("jobs").await.unwrap();
    let producer = Producer::on(&store, "jobs", "host", 1).await.unwrap();
    let consumer = Consumer::on(&store, "jobs", "host", 2).await.unwrap();
    producer.batch_enqueue(&["confidential"; 3]).await.unwrap();
    let taken = consumer.dequeue_with_options(2, 30).await.unwrap();
    consumer.archive(&taken[0]).await.unwrap();
    consumer.bury(&taken[1], "confidential").await.unwrap();
    assert!(producer.enqueue_delayed("x", chrono::TimeDelta::seconds(-1)).await.is_err());
    let (tell, told) = tokio::sync::oneshot::channel();
    let tell = std::sync::Mutex::new(Some(tell));
    let handle = move |_: Delivery| {
        tell.lock().unwrap().take().unwrap().send(()).unwrap();
        async { Ok::<_, tenure::Error>(()) }
    };
    assert_eq!(consumer.run(handle).until(told).await.unwrap().completed, 1);
    let queue = MessageQueue::on(&store);
    queue.enqueue("jobs", "confidential", "confidential", None).await.unwrap();
    queue.ack(&queue.dequeue_batch("jobs").await.unwrap().unwrap().lock_token).await.unwrap();
    Admin::on(&store).replay_dead("jobs", None, 10).await.unwrap();

    let mut operations: BTreeMap<String, u64> = BTreeMap::new();
    let mut events: BTreeMap<String, u64> = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels: Vec<(String, String)> =
            key.key().labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
        let text = format!("{labels:?}");
        assert!(!text.contains("confidential") && !text.contains("hidden"), "{text}");
        let label = |name: &str| labels.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        if let DebugValue::Counter(count) = value {
            match key.key().name() {
                "tenure_operations_total" => *operations.entry(label("operation").unwrap()).or_default() += count,
                _ => *events.entry(label("event").unwrap()).or_default() += count,
            }
        }
    }
    for operation in [
        "create_queue",
        "batch_enqueue",
        "enqueue",
        "dequeue",
        "archive",
        "bury",
        "complete",
        "dequeue_batch",
        "ack",
        "replay_dead",
    ] {
        assert!(operations.contains_key(operation), "{operation} is missing in {operations:?}");
    }
    let expected = [("buried", 1), ("completed", 2), ("delivered", 4), ("enqueued", 4)];
    assert_eq!(events, expected.map(|(event, count)| (event.to_owned(), count)).into());
}
