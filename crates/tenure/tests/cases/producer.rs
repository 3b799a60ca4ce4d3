use std::time::Duration;

use chrono::{TimeDelta, Utc};
use serde_json::json;
use tenure::{Config, EnqueueOptions, Error, Producer, Store, ValidationConfig};

use super::{Harness, START};

pub(crate) async fn what_was_stored_comes_back_from_the_write(h: &Harness) {
    let (producer, _) = h.queue().await;
    let sent = producer.enqueue(&json!({"to": "ada"})).await.unwrap();
    assert_eq!((sent.read_ct, sent.enqueued_at.timestamp_micros()), (0, START));
    assert_eq!(sent.producer_worker_id, Some(producer.worker_id()));
    let stored = h.store.messages().get(sent.id).await.unwrap();
    assert_eq!(stored, sent);
    assert_eq!(stored.payload.value().unwrap(), json!({"to": "ada"}));
    assert!(matches!(h.store.messages().get(4711).await.unwrap_err(), Error::MessageNotFound { id: 4711 }));
}

pub(crate) async fn delayed_messages_wait_for_their_time(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let now = chrono::DateTime::<Utc>::from_timestamp_micros(START).unwrap();
    let by_time = producer.enqueue_at("at", now + TimeDelta::seconds(20)).await.unwrap();
    let by_delay = producer.enqueue_delayed("delayed", 10).await.unwrap();
    let at_once = producer.enqueue_delayed("now", 0).await.unwrap();
    assert_eq!(
        (by_delay.vt - by_delay.enqueued_at, by_time.vt - now),
        (TimeDelta::seconds(10), TimeDelta::seconds(20))
    );
    let take = async || {
        let taken = consumer.dequeue().await.unwrap();
        taken.into_iter().map(|message| message.id).collect::<Vec<_>>()
    };
    assert_eq!(take().await, [at_once.id]);
    h.advance(Duration::from_secs(10));
    assert_eq!(take().await, [by_delay.id]);
    h.advance(Duration::from_secs(10));
    assert_eq!(take().await, [by_time.id]);
}

pub(crate) async fn ten_thousand_messages_go_in_one_batch(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let numbers: Vec<u32> = (0..10_000).collect();
    let sent = producer.batch_enqueue(&numbers).await.unwrap();
    assert!(sent.windows(2).all(|pair| pair[0].id < pair[1].id));
    let mut taken = consumer.dequeue_with_options(2500, 60).await.unwrap();
    assert_eq!(taken.len(), 2500);
    taken.extend(consumer.dequeue_with_options(10_000, 60).await.unwrap());
    let back: Vec<u32> = taken.iter().map(|message| message.json().unwrap()).collect();
    assert!(back == numbers, "{} messages came back, or in another order", back.len());
    assert_eq!(consumer.archive_batch(&taken).await.unwrap().len(), 10_000);
    assert!(producer.batch_enqueue::<u32>(&[]).await.unwrap().is_empty());
    assert!(consumer.archive_batch::<[i64; 0]>([]).await.unwrap().is_empty());
}

pub(crate) async fn a_bad_payload_names_its_index_and_nothing_is_stored(h: &Harness) {
    h.admin().create_queue("jobs").await.unwrap();
    let limits = ValidationConfig {
        max_payload_bytes: 40,
        max_depth: Some(2),
        max_string_bytes: Some(10),
        forbidden_keys: vec!["secret".into()],
        required_keys: vec!["id".into()],
    };
    let strict = Store::connect_with_config(&Config { validation_config: limits, ..Config::from_dsn(h.dsn()) }).await;
    // The Turso engine admits one handle of a file.
    let Ok(strict) = strict else { return };
    let producer = Producer::on(&strict, "jobs", "host", 9).await.unwrap();
    let good = json!({"id": 1});
    for (bad, reason) in [
        (json!({"id": "x".repeat(100)}), "payload 1 has 109 bytes, and at most 40 are allowed"),
        (json!({"id": 1, "a": {"b": {"c": 1}}}), "payload 1 is nested deeper than 2"),
        (json!({"id": "twelve bytes"}), "payload 1 has a text of 12 bytes"),
        (json!({"id": 1, "secret": 2}), "payload 1 has the forbidden key 'secret'"),
        (json!({"no": 1}), "payload 1 has no key 'id'"),
    ] {
        let error = producer.batch_enqueue(&[good.clone(), bad]).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    let error = producer.enqueue_bytes(&b"\xff"[..], &EnqueueOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("payload 0 is not JSON"), "{error}");
    let map = std::collections::HashMap::from([((1, 2), 3)]);
    assert!(matches!(producer.enqueue(&map).await.unwrap_err(), Error::Serialization { .. }));
    assert_eq!(h.admin().get_queue_metrics("jobs").await.unwrap().total_messages, 0);
    producer.enqueue(&good).await.unwrap();
}

pub(crate) async fn a_dedupe_key_stores_one_message(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let options = EnqueueOptions { dedupe_key: Some("order-1".into()), ..Default::default() };
    let first = producer.enqueue_with_options("x", &options).await.unwrap();
    let second = producer.enqueue_with_options("y", &options).await.unwrap();
    assert_eq!((first.duplicate, second.duplicate, second.id), (false, true, first.id));
    assert_eq!(consumer.dequeue().await.unwrap().len(), 1);
}

pub(crate) async fn large_integers_and_bytes_survive(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let numbers = [u64::MAX, (1 << 53) + 1, 0];
    producer.enqueue(&numbers).await.unwrap();
    let every_byte: Vec<u8> = (0..=255).collect();
    producer.enqueue_bytes(every_byte.clone(), &EnqueueOptions::default()).await.unwrap();
    let taken = consumer.dequeue().await.unwrap();
    assert_eq!(taken[0].json::<[u64; 3]>().unwrap(), numbers);
    assert_eq!(taken[0].payload.value().unwrap()[0].as_u64(), Some(u64::MAX));
    assert_eq!(taken[1].payload.as_bytes(), every_byte);
    assert!(matches!(taken[1].json::<String>().unwrap_err(), Error::Serialization { .. }));
}

pub(crate) async fn options_arrive_with_the_message(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let options = EnqueueOptions {
        expire: Some(60.into()),
        max_attempts: Some(1),
        kind: Some("mail".into()),
        reference: Some("r".into()),
        ..Default::default()
    };
    producer.batch_enqueue_with_options(&[1, 2], &options).await.unwrap();
    let taken = consumer.dequeue_with_options(1, 10).await.unwrap().remove(0);
    assert_eq!((taken.kind.as_deref(), taken.reference.as_deref()), (Some("mail"), Some("r")));
    assert_eq!(taken.expires_at.unwrap() - taken.enqueued_at, TimeDelta::seconds(60));
    h.advance(Duration::from_secs(10));
    // Its one attempt is over; the other message lives until it expires.
    assert_eq!(consumer.dequeue_with_options(9, 10).await.unwrap().len(), 1);
    h.advance(Duration::from_secs(60));
    assert!(consumer.dequeue().await.unwrap().is_empty());
    assert_eq!(h.admin().count_dead("jobs").await.unwrap(), 2);
}

pub(crate) async fn bad_options_are_refused(h: &Harness) {
    let (producer, _) = h.queue().await;
    let both = EnqueueOptions { at: Some(Utc::now()), ..Default::default() }.delay(5);
    let negative = EnqueueOptions::default().delay(TimeDelta::seconds(-5));
    let zero = EnqueueOptions { expire: Some(0.into()), ..Default::default() };
    let never = EnqueueOptions { max_attempts: Some(0), ..Default::default() };
    let nul = EnqueueOptions::default().key("a\0b");
    for options in [both, negative, zero, never, nul] {
        let error = producer.enqueue_with_options("x", &options).await.unwrap_err();
        assert!(matches!(error, Error::ValidationFailed { .. }), "{error:?}");
    }
    assert!(producer.enqueue_delayed("x", TimeDelta::seconds(-1)).await.is_err());
    assert_eq!(h.admin().get_queue_metrics("jobs").await.unwrap().total_messages, 0);
}

pub(crate) async fn a_deleted_queue_is_named(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let id = h.admin().get_queue("jobs").await.unwrap().id;
    let ids = h.store.messages().insert_batch(id, producer.worker_id(), &[json!(1), json!(2)]).await.unwrap();
    assert_eq!(h.store.messages().insert(id, producer.worker_id(), &json!(3), Some(60)).await.unwrap(), ids[1] + 1);
    assert!(h.store.messages().delete(ids[0]).await.unwrap());
    assert!(!h.store.messages().delete(ids[0]).await.unwrap());
    h.admin().purge_queue("jobs").await.unwrap();
    consumer.shutdown().await.unwrap();
    producer.shutdown().await.unwrap();
    assert!(matches!(producer.enqueue("x").await.unwrap_err(), Error::WorkerStopped { .. }));
    let late = h.producer().await;
    h.silence();
    assert_eq!(h.admin().delete_queue("jobs").await.unwrap(), 1);
    assert!(matches!(late.enqueue("x").await.unwrap_err(), Error::QueueNotFound { name } if name == "jobs"));
    assert!(h.store.messages().insert(id, 1, &json!(1), None).await.is_err());
}
