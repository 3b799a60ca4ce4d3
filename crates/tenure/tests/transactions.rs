//! Enqueue and complete inside transactions of the caller's own, through the library.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::future::{Future, IntoFuture as _};
use std::time::Duration;

use tenure::{Admin, Consumer, Delivery, EnqueueOptions, Error, Producer, RetryPolicy, Settings, Store};
use tokio::sync::Notify;

async fn queue(store: &Store) -> (Producer, Consumer) {
    store.install().await.unwrap();
    Admin::on(store).create_queue("jobs").await.unwrap();
    (Producer::on(store, "jobs", "host", 1).await.unwrap(), Consumer::on(store, "jobs", "host", 2).await.unwrap())
}

fn dsn() -> String {
    std::env::var("TENURE_TEST_POSTGRES")
        .expect("TENURE_TEST_POSTGRES is not set: run `cargo xtask test tenure`, which starts a throw-away server")
}

/// A store in a file, in the folder in memory that `cargo xtask test` names: leases must not depend on a disk that stalls.
async fn sqlite() -> (tempfile::TempDir, std::path::PathBuf, Store) {
    let files = std::env::var_os("TENURE_TEST_FILES").map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(files).unwrap();
    let path = folder.path().join("app.db");
    let store = Store::connect(&path.display().to_string()).await.unwrap();
    (folder, path, store)
}

#[tokio::test]
async fn work_and_message_are_one_transaction_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let (producer, consumer) = queue(&Store::connect(&path.display().to_string()).await.unwrap()).await;
    let mut app = rusqlite::Connection::open(&path).unwrap();
    app.execute_batch("create table orders (id integer primary key, shipped integer not null)").unwrap();
    for commit in [false, true] {
        let transaction = app.transaction().unwrap();
        transaction.execute("insert into orders values (1, 0)", []).unwrap();
        producer.enqueue_in_sqlite(&transaction, &["ship 1"], &EnqueueOptions::default()).unwrap();
        if commit { transaction.commit().unwrap() } else { transaction.rollback().unwrap() }
    }
    let message = consumer.dequeue().await.unwrap().remove(0);
    assert_eq!(message.read_ct, 1);
    for commit in [false, true] {
        let transaction = app.transaction().unwrap();
        transaction.execute("update orders set shipped = shipped + 1 where id = 1", []).unwrap();
        consumer.complete_in_sqlite(&transaction, &message).unwrap();
        if commit { transaction.commit().unwrap() } else { transaction.rollback().unwrap() }
    }
    // The lease is gone: whoever comes second must roll back.
    let transaction = app.transaction().unwrap();
    let error = consumer.complete_in_sqlite(&transaction, &message).unwrap_err();
    assert!(matches!(error, Error::LeaseLost { id } if id == message.id));
    transaction.rollback().unwrap();
    let shipped: i64 = app.query_row("select shipped from orders", [], |row| row.get(0)).unwrap();
    assert_eq!(shipped, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_and_message_are_one_transaction_on_postgres() {
    let store = Store::connect(&format!("{}?schema=tx_{}", dsn(), std::process::id())).await.unwrap();
    let (producer, consumer) = queue(&store).await;
    let (mut client, connection) = tokio_postgres::connect(&dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    for commit in [false, true] {
        let transaction = client.transaction().await.unwrap();
        let options = EnqueueOptions { kind: Some("order".into()), ..EnqueueOptions::default() };
        let sent = producer.enqueue_in_postgres(&transaction, &["a", "b"], &options).await.unwrap();
        assert_eq!(sent.len(), 2);
        if commit { transaction.commit().await.unwrap() } else { transaction.rollback().await.unwrap() }
    }
    let taken = consumer.dequeue().await.unwrap();
    assert_eq!(taken.iter().map(|m| m.json::<String>().unwrap()).collect::<Vec<_>>(), ["a", "b"]);
    let transaction = client.transaction().await.unwrap();
    consumer.complete_in_postgres(&transaction, &taken[0]).await.unwrap();
    transaction.commit().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let error = consumer.complete_in_postgres(&transaction, &taken[0]).await.unwrap_err();
    assert!(matches!(error, Error::LeaseLost { .. }));
    transaction.rollback().await.unwrap();
    assert_eq!(consumer.count_by_worker().await.unwrap(), 1);
}

#[cfg(feature = "sqlx")]
#[tokio::test(flavor = "multi_thread")]
async fn work_and_message_are_one_transaction_through_sqlx() {
    use sqlx_core::connection::Connection as _;
    let store = Store::connect(&format!("{}?schema=sqlx_{}", dsn(), std::process::id())).await.unwrap();
    let (producer, consumer) = queue(&store).await;
    let mut connection = sqlx_postgres::PgConnection::connect(&dsn()).await.unwrap();
    for commit in [false, true] {
        let mut transaction = connection.begin().await.unwrap();
        let options = EnqueueOptions { reference: Some("r".into()), ..EnqueueOptions::default() };
        let sent = producer.enqueue_in_sqlx(&mut transaction, &["a"], &options).await.unwrap();
        let later = EnqueueOptions::default().delay(3600);
        producer.enqueue_in_sqlx(&mut transaction, &["later"], &later).await.unwrap();
        assert_eq!((sent.len(), sent[0].json::<String>().unwrap().as_str()), (1, "a"));
        if commit { transaction.commit().await.unwrap() } else { transaction.rollback().await.unwrap() }
    }
    let taken = consumer.dequeue().await.unwrap();
    assert_eq!((taken.len(), taken[0].reference.as_deref()), (1, Some("r")));
    assert_eq!(taken[0].producer_worker_id, Some(producer.worker_id()));
    let mut transaction = connection.begin().await.unwrap();
    consumer.complete_in_sqlx(&mut transaction, &taken[0]).await.unwrap();
    transaction.commit().await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let error = consumer.complete_in_sqlx(&mut transaction, &taken[0]).await.unwrap_err();
    assert!(matches!(error, Error::LeaseLost { .. }));
    transaction.rollback().await.unwrap();
    let metrics = Admin::on(&store).get_queue_metrics("jobs").await.unwrap();
    assert_eq!((metrics.total_messages, metrics.delayed_messages), (1, 1));
}

/// Options of each kind, with a duplicate of a stored message and one inside the batch.
fn mixed() -> Vec<(String, EnqueueOptions)> {
    let options = EnqueueOptions::default();
    let at = chrono::DateTime::from_timestamp(4_102_444_800, 0).unwrap();
    [
        options.clone(),
        options.clone().key("k").reference("r").encoding("e"),
        options.clone().delay(60).kind("kind"),
        options.clone().dedupe_key("stored"),
        options.clone().dedupe_key("twin").max_attempts(2).expire(60),
        options.clone().dedupe_key("twin"),
        options.clone().at(at).expire(10),
        options.dedupe_key("forgotten"),
    ]
    .into_iter()
    .enumerate()
    .map(|(n, options)| (format!("payload {n}"), options))
    .collect()
}

/// One message that lives and one that is gone, under the dedupe keys of [`mixed`].
async fn prepare(producer: &Producer, consumer: &Consumer) -> [i64; 2] {
    let once = |key: &str| EnqueueOptions::default().dedupe_key(key);
    let gone = producer.enqueue_with_options("gone", &once("forgotten")).await.unwrap();
    assert!(consumer.delete(&consumer.dequeue().await.unwrap()[0]).await.unwrap());
    let options = once("stored").kind("old").reference("r").max_attempts(9);
    [producer.enqueue_with_options("old", &options).await.unwrap().id, gone.id]
}

async fn check_mixed(store: &Store, sent: &[tenure::QueueMessage], [stored, gone]: [i64; 2], worker: i64) {
    let duplicates: Vec<bool> = sent.iter().map(|sent| sent.duplicate).collect();
    assert_eq!(duplicates, [false, false, false, true, false, true, false, true]);
    assert_eq!((sent[3].id, sent[5].id, sent[7].id), (stored, sent[4].id, gone));
    assert_eq!((sent[7].payload.as_bytes(), sent[7].enqueued_at.timestamp() > 1_000_000_000), (&b""[..], true));
    for (n, sent) in sent[..7].iter().enumerate() {
        let mut found = store.messages().get(sent.id).await.unwrap();
        assert_eq!(found.producer_worker_id, Some(worker));
        found.duplicate = sent.duplicate;
        assert_eq!(*sent, found, "message {n}");
    }
}

#[tokio::test]
async fn a_batch_of_different_options_in_a_transaction_on_sqlite() {
    let (_folder, path, store) = sqlite().await;
    let (producer, consumer) = queue(&store).await;
    let ids = prepare(&producer, &consumer).await;
    let mut app = rusqlite::Connection::open(&path).unwrap();
    let transaction = app.transaction().unwrap();
    let sent = producer.enqueue_each_in_sqlite(&transaction, &mixed()).unwrap();
    transaction.commit().unwrap();
    check_mixed(&store, &sent, ids, producer.worker_id()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_different_options_in_a_transaction_on_postgres() {
    let store = Store::connect(&format!("{}?schema=each_{}", dsn(), std::process::id())).await.unwrap();
    let (producer, consumer) = queue(&store).await;
    let ids = prepare(&producer, &consumer).await;
    let (mut client, connection) = tokio_postgres::connect(&dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let transaction = client.transaction().await.unwrap();
    let sent = producer.enqueue_each_in_postgres(&transaction, &mixed()).await.unwrap();
    // A message of the transaction itself is found, which no other connection can see.
    let own = EnqueueOptions::default().dedupe_key("own");
    let own = [("own", own.clone()), ("other", own)];
    producer.enqueue_each_in_postgres(&transaction, &own[..1]).await.unwrap();
    let again = producer.enqueue_each_in_postgres(&transaction, &own[1..]).await.unwrap();
    assert_eq!((again[0].duplicate, again[0].json::<String>().unwrap().as_str()), (true, "own"));
    transaction.commit().await.unwrap();
    check_mixed(&store, &sent, ids, producer.worker_id()).await;
}

#[cfg(feature = "sqlx")]
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_different_options_in_a_transaction_through_sqlx() {
    use sqlx_core::connection::Connection as _;
    let store = Store::connect(&format!("{}?schema=each_sqlx_{}", dsn(), std::process::id())).await.unwrap();
    store.install().await.unwrap();
    let settings = tenure::Settings { partitions: 4, ..tenure::Settings::default() };
    Admin::on(&store).create_queue_with("jobs", settings).await.unwrap();
    let producer = Producer::on(&store, "jobs", "host", 1).await.unwrap();
    let consumer = Consumer::on(&store, "jobs", "host", 2).await.unwrap();
    let ids = prepare(&producer, &consumer).await;
    let mut connection = sqlx_postgres::PgConnection::connect(&dsn()).await.unwrap();
    for commit in [false, true] {
        let mut transaction = connection.begin().await.unwrap();
        let sent = producer.enqueue_each_in_sqlx(&mut transaction, &mixed()).await.unwrap();
        if !commit {
            transaction.rollback().await.unwrap();
            continue;
        }
        transaction.commit().await.unwrap();
        check_mixed(&store, &sent, ids, producer.worker_id()).await;
    }
    assert!(producer.enqueue_each_in_sqlx::<u8>(&mut connection, &[]).await.unwrap().is_empty());
    // Messages without a key stay together, in their order; a key has its own lane, the same as everywhere.
    let numbers: Vec<u32> = (0..1000).collect();
    let sent = producer.enqueue_in_sqlx(&mut connection, &numbers, &EnqueueOptions::default()).await.unwrap();
    assert!(sent.windows(2).all(|pair| pair[0].id < pair[1].id));
    let taken = consumer.dequeue_with_options(2000, 60).await.unwrap();
    let back: Vec<u32> = taken.iter().filter_map(|message| message.json().ok()).collect();
    assert!(back == numbers, "{} came back, or in another order", back.len());
    let bad = EnqueueOptions::default().key("");
    let error = producer.enqueue_in_sqlx(&mut connection, &[1], &bad).await.unwrap_err();
    assert!(matches!(error, Error::ValidationFailed { .. }), "{error:?}");
}

/// A message of a key is completed under its own lease and its key's, by the consumer that holds both.
#[cfg(feature = "sqlx")]
#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_key_is_completed_through_sqlx_by_its_holder_alone() {
    use sqlx_core::connection::Connection as _;
    let store = Store::connect(&format!("{}?schema=keyed_sqlx_{}", dsn(), std::process::id())).await.unwrap();
    let (producer, consumer) = queue(&store).await;
    let other = Consumer::on(&store, "jobs", "host", 3).await.unwrap();
    let mut connection = sqlx_postgres::PgConnection::connect(&dsn()).await.unwrap();
    producer.enqueue_in_sqlx(&mut connection, &["x"], &EnqueueOptions::default()).await.unwrap();
    let taken = consumer.dequeue().await.unwrap().remove(0);
    let error = other.complete_in_sqlx(&mut connection, &taken).await.unwrap_err();
    assert!(matches!(error, Error::LeaseLost { .. }), "a lease of another consumer: {error:?}");
    producer.enqueue_in_sqlx(&mut connection, &["keyed"], &EnqueueOptions::default().key("k")).await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let shared = std::sync::Arc::new(tokio::sync::Mutex::new((connection, Some(stop))));
    let handler = {
        let consumer = consumer.clone();
        move |delivery: tenure::Delivery| {
            let (consumer, shared) = (consumer.clone(), shared.clone());
            async move {
                let (connection, stop) = &mut *shared.lock().await;
                let first = consumer.complete_in_sqlx(connection, &delivery).await;
                let second = consumer.complete_in_sqlx(connection, &delivery).await;
                if let Some(stop) = stop.take() {
                    drop(stop.send((delivery.key.clone(), first, second)));
                }
                Ok::<(), Error>(())
            }
        }
    };
    let mut seen = None;
    let until = async { seen = stopped.await.ok() };
    let summary = consumer.run(handler).until(until).await.unwrap();
    assert_eq!((summary.completed, summary.lost), (1, 0));
    let (key, first, second) = seen.unwrap();
    assert_eq!(key.as_deref(), Some("k"));
    assert!(first.is_ok(), "{first:?}");
    assert!(matches!(second, Err(Error::LeaseLost { .. })), "{second:?}");
    let metrics = Admin::on(&store).get_queue_metrics("jobs").await.unwrap();
    assert_eq!(metrics.total_messages, 1, "the one that the first consumer still holds");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dequeue_that_fails_in_a_later_round_hands_out_what_it_has_leased() {
    let schema = format!("rounds_{}", std::process::id());
    let store = Store::connect(&format!("{}?schema={schema}", dsn())).await.unwrap();
    let (producer, consumer) = queue(&store).await;
    producer.batch_enqueue(&(0..1500).collect::<Vec<_>>()).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let refuse = "create function schema.refuse() returns trigger language plpgsql as $$ begin
             if new.payload = '1200'::bytea then raise exception 'not this one'; end if;
             return new;
         end $$;
         create trigger refuse before update on schema.message for each row execute function schema.refuse()";
    client.batch_execute(&refuse.replace("schema.", &format!("{schema}."))).await.unwrap();
    let taken = consumer.dequeue_with_options(2000, 30).await.unwrap();
    assert_eq!(taken.len(), 1000, "what the first round leased");
    assert_eq!(consumer.count_by_worker().await.unwrap(), 1000);
    assert!(consumer.dequeue_with_options(2000, 30).await.is_err(), "an error that lasts is not hidden");
}

/// A database whose clock is an hour behind this machine's.
#[tokio::test(flavor = "multi_thread")]
async fn due_times_are_decided_by_the_clock_of_the_database() {
    let (client, connection) = tokio_postgres::connect(&dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let schema = format!("behind_{}", std::process::id());
    let behind = format!(
        "create schema {schema}_clock;
         create function {schema}_clock.clock_timestamp() returns timestamptz language sql volatile
         as $$ select pg_catalog.clock_timestamp() - interval '1 hour' $$"
    );
    client.batch_execute(&behind).await.unwrap();
    let path = format!("options=-c%20search_path%3D{schema}_clock,pg_catalog");
    let store = Store::connect(&format!("{}?schema={schema}&{path}", dsn())).await.unwrap();
    let (producer, consumer) = queue(&store).await;
    // By this machine's clock both are long due.
    let now = chrono::Utc::now() - chrono::TimeDelta::hours(1);
    producer.enqueue_at("in a minute", now + chrono::TimeDelta::minutes(1)).await.unwrap();
    producer.enqueue_delayed("too", 60).await.unwrap();
    assert!(consumer.dequeue().await.unwrap().is_empty(), "delivered before the database's clock says that it is due");
    producer.enqueue_at("a second ago", now - chrono::TimeDelta::seconds(1)).await.unwrap();
    assert_eq!(consumer.dequeue().await.unwrap().len(), 1);
}

/// A store's queues without and with retention, and the consumer and producer of each.
async fn queues(store: &Store) -> Vec<(&'static str, Producer, Consumer)> {
    store.install().await.unwrap();
    let kept = Settings { retain_completed: Some(Duration::from_secs(600)), ..Settings::default() };
    let mut queues = Vec::new();
    for (name, settings) in [("jobs", Settings::default()), ("kept", kept)] {
        Admin::on(store).create_queue_with(name, settings).await.unwrap();
        let producer = Producer::on(store, name, "host", 1).await.unwrap();
        queues.push((name, producer, Consumer::on(store, name, "host", 2).await.unwrap()));
    }
    queues
}

const FAST: RetryPolicy =
    RetryPolicy { first: Duration::from_millis(50), factor: 1.0, max: Duration::from_secs(1), jitter: 0.0 };

/// Whether the handler of a delivery commits, and whether it then returns an error.
fn plan(delivery: &Delivery) -> (bool, bool) {
    match (delivery.json::<String>().unwrap().as_str(), delivery.read_ct) {
        ("commit, fail", _) => (true, true),
        ("roll back, succeed", _) => (false, false),
        ("roll back, fail", 1) => (false, true),
        _ => (true, false),
    }
}

/// Runs a handler that completes its messages in transactions of its own, plain ones and those of a key.
async fn completed_in_transactions<H, F>(store: &Store, name: &str, producer: &Producer, consumer: &Consumer, handle: H)
where
    H: Fn(Delivery) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let payloads = ["commit, succeed", "commit, fail", "roll back, succeed", "roll back, fail", "commit, succeed"];
    producer.batch_enqueue(&payloads).await.unwrap();
    let options = EnqueueOptions::default().key("ada");
    producer.batch_enqueue_with_options(&payloads, &options).await.unwrap();
    let done = async {
        while Admin::on(store).get_queue_metrics(name).await.unwrap().total_messages > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let summary = consumer.run(handle).retry(FAST).until(done).await.unwrap();
    assert_eq!((summary.completed, summary.lost, summary.retried), (10, 0, 2), "{name}");
}

fn broken() -> Error {
    Error::ValidationFailed { reason: "after the transaction".into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_completed_in_its_handlers_transaction_counts_as_completed_on_sqlite() {
    let (_folder, path, store) = sqlite().await;
    for (name, producer, consumer) in queues(&store).await {
        let (own, path) = (consumer.clone(), path.clone());
        let handle = move |delivery: Delivery| {
            let (own, path) = (own.clone(), path.clone());
            async move {
                let (commits, fails) = plan(&delivery);
                let mut app = rusqlite::Connection::open(&path).unwrap();
                app.busy_timeout(Duration::from_secs(10)).unwrap();
                let transaction = app.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
                own.complete_in_sqlite(&transaction, &delivery)?;
                let ended = if commits { transaction.commit() } else { transaction.rollback() };
                ended.unwrap();
                if fails { Err(broken()) } else { Ok(()) }
            }
        };
        completed_in_transactions(&store, name, &producer, &consumer, handle).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_may_work_on_for_longer_than_the_lease_of_a_message_that_it_has_completed() {
    let (_folder, path, store) = sqlite().await;
    let lease = Duration::from_secs(8);
    for (name, producer, consumer) in queues(&store).await {
        producer.enqueue("x").await.unwrap();
        let (own, path) = (consumer.clone(), path.clone());
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let handle = move |delivery: Delivery| {
            let (own, path, tell) = (own.clone(), path.clone(), tell.clone());
            async move {
                {
                    let mut app = rusqlite::Connection::open(&path).unwrap();
                    app.busy_timeout(Duration::from_secs(10)).unwrap();
                    let transaction = app.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
                    own.complete_in_sqlite(&transaction, &delivery)?;
                    transaction.commit().unwrap();
                }
                let told = tokio::time::timeout(lease * 5 / 4, delivery.lease_lost().cancelled()).await;
                tell.send(told.is_ok()).unwrap();
                Ok::<_, Error>(())
            }
        };
        let mut lost = None;
        let done = async { lost = told.recv().await };
        let summary = consumer.run(handle).lease(lease).until(done).await.unwrap();
        assert_eq!(lost, Some(false), "{name}: the handler was told that it has lost what it has completed");
        assert_eq!((summary.completed, summary.lost), (1, 0), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_completed_in_its_handlers_transaction_counts_as_completed_on_postgres() {
    let store = Store::connect(&format!("{}?schema=own_{}", dsn(), std::process::id())).await.unwrap();
    for (name, producer, consumer) in queues(&store).await {
        let own = consumer.clone();
        let handle = move |delivery: Delivery| {
            let own = own.clone();
            async move {
                let (commits, fails) = plan(&delivery);
                let (mut client, connection) = tokio_postgres::connect(&dsn(), tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                let transaction = client.transaction().await.unwrap();
                own.complete_in_postgres(&transaction, &delivery).await?;
                let ended = if commits { transaction.commit().await } else { transaction.rollback().await };
                ended.unwrap();
                // Longer than the loop takes to notice that a message is gone: its handler is not told, because it did it
                // itself.
                let told = tokio::time::timeout(Duration::from_millis(1200), delivery.lease_lost().cancelled()).await;
                assert!(told.is_err(), "the handler was told that it has lost what it has completed");
                if fails { Err(broken()) } else { Ok(()) }
            }
        };
        completed_in_transactions(&store, name, &producer, &consumer, handle).await;
    }
}

/// The SQL function is called without the library: the loop learns of it only when it asks the database.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_completed_by_the_sql_function_counts_as_completed() {
    let schema = format!("raw_{}", std::process::id());
    let store = Store::connect(&format!("{}?schema={schema}", dsn())).await.unwrap();
    for (name, producer, consumer) in queues(&store).await {
        producer.batch_enqueue(&["at once", "long"]).await.unwrap();
        let worker = consumer.worker_id();
        let ended = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
        let (end, schema) = (ended.clone(), schema.clone());
        let handle = move |delivery: Delivery| {
            let (end, schema) = (end.clone(), schema.clone());
            async move {
                let (client, connection) = tokio_postgres::connect(&dsn(), tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                let (id, attempt) = (delivery.id, i64::from(delivery.read_ct));
                let text = format!("select {schema}.complete({id}, {attempt}, {worker})");
                assert!(client.query_one(&text, &[]).await.unwrap().get::<_, bool>(0));
                if delivery.json::<String>().unwrap() == "long" {
                    // Longer than the loop takes to notice that the message is gone.
                    tokio::time::sleep(Duration::from_millis(1200)).await;
                }
                end.add_permits(1);
                Ok::<_, Error>(())
            }
        };
        let all = async { ended.acquire_many(2).await.unwrap().forget() };
        let summary = consumer.run(handle).until(all).await.unwrap();
        assert_eq!((summary.completed, summary.lost, summary.retried), (2, 0, 0), "{name}");
    }
}

/// A transaction that is rolled back has completed nothing, whatever has become of the message since.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_another_consumer_completed_after_a_rollback_counts_as_lost() {
    const LEASE: Duration = Duration::from_secs(8);
    let (_folder, path, store) = sqlite().await;
    for (name, producer, consumer) in queues(&store).await {
        let other = Consumer::on(&store, name, "host", 3).await.unwrap();
        producer.enqueue("x").await.unwrap();
        let (rolled_back, taken) = (std::sync::Arc::new(Notify::new()), std::sync::Arc::new(Notify::new()));
        let (tell, wait, own, path) = (rolled_back.clone(), taken.clone(), consumer.clone(), path.clone());
        let handle = move |delivery: Delivery| {
            let (tell, wait, own, path) = (tell.clone(), wait.clone(), own.clone(), path.clone());
            async move {
                let hold = move || {
                    let mut app = rusqlite::Connection::open(&path).unwrap();
                    let transaction = app.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
                    own.complete_in_sqlite(&transaction, &delivery).unwrap();
                    // The lease cannot be extended meanwhile.
                    std::thread::sleep(LEASE + Duration::from_millis(500));
                    transaction.rollback().unwrap();
                };
                tokio::task::spawn_blocking(hold).await.unwrap();
                tell.notify_one();
                wait.notified().await;
                Ok::<_, Error>(())
            }
        };
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let take_over = async {
            rolled_back.notified().await;
            let message = other.dequeue_within(Duration::from_secs(60), 1, 60).await.unwrap().remove(0);
            assert_eq!(message.read_ct, 2);
            assert!(other.complete(&message).await.unwrap());
            taken.notify_one();
            tokio::time::sleep(Duration::from_millis(300)).await;
            drop(stop);
        };
        // The loop has no room to take the message again itself.
        let run = consumer.run(handle).concurrency(1).prefetch(0).lease(LEASE);
        let run = run.until(async { drop(stopped.await) });
        let (summary, ()) = tokio::join!(run.into_future(), take_over);
        let summary = summary.unwrap();
        assert_eq!((summary.completed, summary.lost, summary.retried), (0, 1, 0), "{name}");
    }
}

/// Deletes the queue and creates it anew, as another process would; its new number.
async fn created_anew(dsn: &str) -> i64 {
    // The library refuses to delete a queue with live workers.
    let kernel = tenure_store::Store::connect(dsn).await.unwrap();
    kernel.queue_delete("jobs").await.unwrap();
    kernel.queue_create("jobs", tenure_store::Settings::default()).await.unwrap().id
}

fn missing(error: &Error) {
    assert!(matches!(error, Error::QueueNotFound { name } if name == "jobs"), "{error:?}");
}

#[tokio::test]
async fn producer_on_sqlite_finds_its_queue_created_anew_after_one_refusal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db").display().to_string();
    let (producer, _consumer) = queue(&Store::connect(&path).await.unwrap()).await;
    let id = created_anew(&path).await;
    let mut app = rusqlite::Connection::open(&path).unwrap();
    let options = EnqueueOptions::default();
    let transaction = app.transaction().unwrap();
    missing(&producer.enqueue_in_sqlite(&transaction, &["a"], &options).unwrap_err());
    transaction.rollback().unwrap();
    let transaction = app.transaction().unwrap();
    let sent = producer.enqueue_in_sqlite(&transaction, &["a"], &options).unwrap();
    transaction.commit().unwrap();
    assert_eq!(sent[0].queue_id, id);
    assert_eq!(producer.enqueue("b").await.unwrap().queue_id, id);
}

#[tokio::test(flavor = "multi_thread")]
async fn producer_on_postgres_finds_its_queue_created_anew_after_one_refusal() {
    let dsn_of_store = format!("{}?schema=anew_{}", dsn(), std::process::id());
    let (producer, _consumer) = queue(&Store::connect(&dsn_of_store).await.unwrap()).await;
    let id = created_anew(&dsn_of_store).await;
    let (mut client, connection) = tokio_postgres::connect(&dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let each = [("a", EnqueueOptions::default()), ("b", EnqueueOptions::default().dedupe_key("d"))];
    let transaction = client.transaction().await.unwrap();
    missing(&producer.enqueue_each_in_postgres(&transaction, &each).await.unwrap_err());
    transaction.rollback().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let sent = producer.enqueue_each_in_postgres(&transaction, &each).await.unwrap();
    transaction.commit().await.unwrap();
    assert!(sent.iter().all(|message| message.queue_id == id), "{sent:?}");
}

/// The function looks the name up.
#[cfg(feature = "sqlx")]
#[tokio::test(flavor = "multi_thread")]
async fn producer_in_sqlx_finds_its_queue_created_anew_at_once() {
    use sqlx_core::connection::Connection as _;
    let dsn_of_store = format!("{}?schema=sqlx_anew_{}", dsn(), std::process::id());
    let (producer, _consumer) = queue(&Store::connect(&dsn_of_store).await.unwrap()).await;
    let id = created_anew(&dsn_of_store).await;
    let mut connection = sqlx_postgres::PgConnection::connect(&dsn()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let sent = producer.enqueue_in_sqlx(&mut transaction, &["a"], &EnqueueOptions::default()).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(sent[0].queue_id, id);
}
