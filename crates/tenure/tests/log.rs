//! Every log event has one field called `message`: its sentence. A log of JSON objects cannot hold two.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{Admin, Consumer, Delivery, EnqueueOptions, Outcome, Producer, RetryPolicy, Store};
use tracing::field::{Field, Visit};
use tracing::span;

/// The names of the fields of every event, in order.
#[derive(Clone, Default)]
struct Fields(Arc<Mutex<Vec<Vec<String>>>>);

impl tracing::Subscriber for Fields {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("tenure")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut names = Names(Vec::new());
        event.record(&mut names);
        self.0.lock().unwrap().push(names.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Names(Vec<String>);

impl Visit for Names {
    fn record_debug(&mut self, field: &Field, _: &dyn std::fmt::Debug) {
        self.0.push(field.name().to_owned());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_has_one_field_called_message() {
    let fields = Fields::default();
    tracing::subscriber::set_global_default(fields.clone()).unwrap();
    let store = Store::connect(":memory:").await.unwrap();
    store.install().await.unwrap();
    Admin::on(&store).create_queue("jobs").await.unwrap();
    let producer = Producer::on(&store, "jobs", "host", 1).await.unwrap();
    let consumer = Consumer::on(&store, "jobs", "host", 2).await.unwrap();
    let limited = EnqueueOptions::default().max_attempts(2);
    producer.batch_enqueue_with_options(&["fails", "panics", "hangs"], &limited).await.unwrap();
    producer.enqueue("is buried").await.unwrap();
    let handle = |delivery: Delivery| async move {
        match delivery.json::<String>().unwrap().as_str() {
            "panics" => panic!("out of cheese"),
            "hangs" => std::future::pending().await,
            "is buried" => Ok(Outcome::Bury("spam".into())),
            _ => Err("always"),
        }
    };
    let dead = async {
        while Admin::on(&store).count_dead("jobs").await.unwrap() < 4 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let soon = RetryPolicy { first: Duration::from_millis(20), jitter: 0.0, ..RetryPolicy::default() };
    let summary = consumer.run(handle).retry(soon).time_limit(Duration::from_millis(100)).until(dead).await.unwrap();
    assert_eq!((summary.retried, summary.buried), (3, 4));
    let events = fields.0.lock().unwrap();
    assert!(events.len() >= 6, "{events:?}");
    for names in events.iter() {
        assert_eq!(names.iter().filter(|name| *name == "message").count(), 1, "{names:?}");
    }
}
