//! A database that does not answer: a loop that is told to stop ends within its grace and a margin all the same.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::{Admin, Consumer, Delivery, Error, Producer, Store};
use tracing::field::{Field, Visit};
use tracing::span;

const GRACE: Duration = Duration::from_secs(1);
/// The grace, the loop's own margin of 5 s, and what a machine that stalls adds.
const BOUND: Duration = Duration::from_secs(15);

/// The text of every warning with its number of messages, if it has one.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<Warning>>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("tenure") && *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut warning = Warning::default();
        event.record(&mut warning);
        self.0.lock().unwrap().push(warning);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Debug, Default)]
struct Warning {
    text: String,
    messages: Option<u64>,
}

impl Visit for Warning {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "messages" {
            self.messages = Some(value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.text = format!("{value:?}");
        }
    }
}

/// Runs a loop of one handler that never ends over ten messages, and stops it when `lock` has locked the database. How long
/// the stop took.
async fn stopped<L: Send>(dsn: &str, lock: impl Future<Output = L> + Send) -> Duration {
    let store = Store::connect(dsn).await.unwrap();
    store.install().await.unwrap();
    Admin::on(&store).create_queue("jobs").await.unwrap();
    let producer = Producer::on(&store, "jobs", "host", 1).await.unwrap();
    let consumer = Consumer::on(&store, "jobs", "host", 2).await.unwrap();
    producer.batch_enqueue(&(0..10).collect::<Vec<_>>()).await.unwrap();
    let (began, begins) = tokio::sync::oneshot::channel();
    let began = Arc::new(Mutex::new(Some(began)));
    let handle = move |_: Delivery| {
        let began = began.clone();
        async move {
            if let Some(began) = began.lock().unwrap().take() {
                began.send(()).unwrap();
            }
            std::future::pending::<Result<(), Error>>().await
        }
    };
    let mut locked = None;
    let until = async {
        begins.await.unwrap();
        locked = Some((lock.await, Instant::now()));
    };
    consumer.run(handle).concurrency(1).prefetch(9).grace(GRACE).until(until).await.unwrap();
    let (_lock, since) = locked.unwrap();
    since.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_within_its_grace_while_the_database_is_locked() {
    let warnings = Warnings::default();
    tracing::subscriber::set_global_default(warnings.clone()).unwrap();
    let check = |backend: &str, took: Duration| {
        assert!((GRACE..BOUND).contains(&took), "{backend}: the stop took {took:?}");
        let warned = std::mem::take(&mut *warnings.0.lock().unwrap());
        let says = |warning: &Warning| warning.text.contains("stay leased") && warning.messages == Some(10);
        assert!(warned.iter().any(says), "{backend}: no warning says what stays leased: {warned:?}");
    };

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let lock = async {
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.busy_timeout(Duration::from_secs(60)).unwrap();
        connection.execute_batch("begin immediate").unwrap();
        connection
    };
    check("sqlite", stopped(&path.display().to_string(), lock).await);

    let dsn = std::env::var("TENURE_TEST_POSTGRES")
        .expect("TENURE_TEST_POSTGRES is not set: run `cargo xtask test tenure`, which starts a throw-away server");
    let schema = format!("stop_{}", std::process::id());
    let lock = async {
        let (client, connection) = tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(&format!("begin; lock table {schema}.message")).await.unwrap();
        client
    };
    check("postgres", stopped(&format!("{dsn}?schema={schema}"), lock).await);
}
