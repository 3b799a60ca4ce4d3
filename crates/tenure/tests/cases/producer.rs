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

pub(crate) async fn a_duplicate_returns_the_stored_message(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let first =
        EnqueueOptions::default().dedupe_key("order-1").kind("first").max_attempts(3).encoding("e").expire(9000);
    let sent = producer.enqueue_with_options("x", &first).await.unwrap();
    assert_eq!((sent.duplicate, sent.encoding.as_deref()), (false, Some("e")));
    let other = Producer::on(&h.store, "jobs", "host", 7).await.unwrap();
    h.advance(Duration::from_secs(5));
    let again = async || {
        other.enqueue_with_options("y", &EnqueueOptions::default().dedupe_key("order-1").kind("z")).await.unwrap()
    };
    let waiting = again().await;
    assert!(waiting.duplicate);
    assert_eq!(waiting.payload.value().unwrap(), json!("x"));
    assert_eq!((waiting.enqueued_at, waiting.vt, waiting.expires_at), (sent.enqueued_at, sent.vt, sent.expires_at));
    assert_eq!((waiting.kind.as_deref(), waiting.max_read_ct, waiting.read_ct), (Some("first"), Some(3), 0));
    assert_eq!((waiting.producer_worker_id, waiting.encoding.as_deref()), (Some(producer.worker_id()), Some("e")));
    let leased = consumer.dequeue_with_options(1, 60).await.unwrap().remove(0);
    let seen = again().await;
    assert_eq!((seen.id, seen.read_ct, seen.vt), (sent.id, 1, leased.vt));
    assert_eq!(seen.consumer_worker_id, Some(consumer.worker_id()));
    h.advance(Duration::from_secs(5));
    // Dead, and in the archive.
    assert!(consumer.bury(&leased, "why").await.unwrap());
    let dead = again().await;
    assert_eq!((dead.id, dead.payload.value().unwrap(), dead.read_ct), (sent.id, json!("x"), 1));
    assert_eq!(dead.vt.timestamp_micros(), START + 10_000_000, "the time of its end");
}

pub(crate) async fn a_duplicate_of_a_forgotten_message_has_its_id_and_time(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let options = EnqueueOptions::default().dedupe_key("order-1").kind("k");
    let sent = producer.enqueue_with_options("x", &options).await.unwrap();
    assert!(consumer.delete(&consumer.dequeue().await.unwrap()[0]).await.unwrap());
    h.advance(Duration::from_secs(5));
    let gone = producer.enqueue_with_options("y", &options).await.unwrap();
    assert_eq!((gone.id, gone.duplicate, gone.enqueued_at), (sent.id, true, sent.enqueued_at));
    assert_eq!((gone.payload.as_bytes(), gone.kind, gone.producer_worker_id), (&b""[..], None, None));
}

pub(crate) async fn every_message_of_a_batch_can_have_its_own_options(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let options = EnqueueOptions::default();
    let now = chrono::DateTime::<Utc>::from_timestamp_micros(START).unwrap();
    let batch = [
        ("plain", options.clone()),
        ("keyed", options.clone().key("k").reference("r")),
        ("delayed", options.clone().delay(60)),
        ("once", options.clone().dedupe_key("d").kind("first")),
        ("twice", options.clone().dedupe_key("d").kind("second")),
        ("at", options.clone().at(now + TimeDelta::seconds(30)).expire(10)),
        ("last", options.clone().dedupe_key("e").max_attempts(2)),
    ];
    let sent = producer.batch_enqueue_each(&batch).await.unwrap();
    let told = |n: usize| sent[n].json::<String>().unwrap();
    assert_eq!((0..7).map(told).collect::<Vec<_>>(), ["plain", "keyed", "delayed", "once", "once", "at", "last"]);
    assert_eq!(
        sent.iter().map(|sent| sent.duplicate).collect::<Vec<_>>(),
        [false, false, false, false, true, false, false]
    );
    assert_eq!((sent[4].id, sent[4].kind.as_deref()), (sent[3].id, Some("first")));
    assert_eq!((sent[1].key.as_deref(), sent[1].reference.as_deref()), (Some("k"), Some("r")));
    assert_eq!((sent[2].vt - now, sent[5].vt - now), (TimeDelta::seconds(60), TimeDelta::seconds(30)));
    assert_eq!((sent[5].expires_at.unwrap() - now, sent[6].max_read_ct), (TimeDelta::seconds(40), Some(2)));
    for sent in &sent {
        let stored = h.store.messages().get(sent.id).await.unwrap();
        assert_eq!(sent.payload, stored.payload);
        assert_eq!((sent.vt, sent.expires_at, &sent.key), (stored.vt, stored.expires_at, &stored.key));
    }
    let taken = consumer.dequeue().await.unwrap();
    let taken: Vec<String> = taken.iter().map(|message| message.json().unwrap()).collect();
    assert_eq!(taken, ["plain", "once", "last"]);
    assert!(producer.batch_enqueue_each::<u32>(&[]).await.unwrap().is_empty());
}

pub(crate) async fn a_batch_with_one_bad_message_names_it_and_stores_nothing(h: &Harness) {
    let (producer, _) = h.queue().await;
    let options = EnqueueOptions::default();
    for (bad, reason) in [
        (options.clone().key(""), "message 1: the key is empty"),
        (options.clone().dedupe_key("x".repeat(2000)), "message 1: the dedupe key has 2000 bytes"),
        (options.clone().delay(TimeDelta::seconds(-1)), "message 1: the delay is negative"),
        (options.clone().expire(0), "message 1: the expiry is zero"),
        (options.clone().max_attempts(0), "message 1: max_attempts is 0"),
        (options.clone().at(Utc::now()).delay(1), "message 1: both a delay and a time are given"),
    ] {
        let error = producer.batch_enqueue_each(&[(1, options.clone()), (2, bad)]).await.unwrap_err();
        assert!(matches!(error, Error::ValidationFailed { .. }), "{error:?}");
        assert!(error.to_string().starts_with(reason), "{error}");
    }
    let unwritable = std::collections::HashMap::from([((1, 2), 3)]);
    let fine = std::collections::HashMap::new();
    let error = producer.batch_enqueue_each(&[(fine, options.clone()), (unwritable, options)]).await.unwrap_err();
    assert!(matches!(error, Error::Serialization { index: 1, .. }), "{error:?}");
    assert_eq!(h.admin().get_queue_metrics("jobs").await.unwrap().total_messages, 0);
}
