//! What a program needs to use drivers of its own: the re-exported crates, and the arguments of `tenure.complete` in SQL.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::time::Duration;

use tenure::{Admin, Consumer, EnqueueOptions, Error, Producer, Store};

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

/// `tenure.complete` with what a message says about its lease, after it was snoozed, and for one with a key.
#[tokio::test(flavor = "multi_thread")]
async fn sql_completes_a_snoozed_message_and_one_of_a_key_by_its_lease_alone() {
    let schema = format!("snoozed_{}", std::process::id());
    let store = Store::connect(&format!("{}?schema={schema}", dsn())).await.unwrap();
    let (producer, consumer) = queue(&store).await;
    let (client, connection) = tenure::tokio_postgres::connect(&dsn(), tenure::tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let complete = async |message: &tenure::QueueMessage, token: Option<i64>| -> bool {
        let sql = format!("select {schema}.complete($1, $2, $3, $4)");
        let (attempt, worker) = (i64::from(message.read_ct), message.consumer_worker_id);
        client.query_one(&sql, &[&message.position(), &attempt, &worker, &token]).await.unwrap().get(0)
    };
    let sent = producer.enqueue("early").await.unwrap();
    assert_eq!((sent.position(), sent.key_token()), (None, None));
    let old = consumer.dequeue().await.unwrap().remove(0);
    assert!(consumer.snooze(&old, tenure::chrono::TimeDelta::milliseconds(1)).await.unwrap());
    let new = consumer.dequeue_within(Duration::from_secs(30), 1, 60).await.unwrap().remove(0);
    assert_eq!((new.id, new.read_ct, old.position()), (sent.id, 1, Some(sent.id)));
    assert!(!complete(&old, old.key_token()).await, "the lease that was snoozed");
    assert!(complete(&new, new.key_token()).await);
    let routed = tenure::MessageQueue::on(&store);
    routed.enqueue("jobs", "k", "keyed", None).await.unwrap();
    let batch = routed.dequeue_batch("jobs").await.unwrap().unwrap();
    let token = batch.messages[0].key_token();
    assert!(token.is_some() && !complete(&batch.messages[0], token.map(|token| token + 1)).await, "{token:?}");
    assert!(complete(&batch.messages[0], token).await);
}

/// A program needs no driver of its own: the crates of the API are re-exported.
#[tokio::test(flavor = "multi_thread")]
async fn the_re_exported_drivers_and_times_are_those_of_the_api() {
    let options = EnqueueOptions::default().at(tenure::chrono::Utc::now() - tenure::chrono::TimeDelta::hours(1));
    let (_folder, path, store) = sqlite().await;
    let (producer, consumer) = queue(&store).await;
    let mut app = tenure::rusqlite::Connection::open(&path).unwrap();
    let transaction = app.transaction().unwrap();
    producer.enqueue_in_sqlite(&transaction, &["sqlite"], &options).unwrap();
    transaction.commit().unwrap();
    assert_eq!(consumer.dequeue_within(Duration::from_secs(30), 1, 60).await.unwrap().len(), 1);

    let store = Store::connect(&format!("{}?schema=drivers_{}", dsn(), std::process::id())).await.unwrap();
    let (producer, consumer) = queue(&store).await;
    let (mut client, connection) =
        tenure::tokio_postgres::connect(&dsn(), tenure::tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let transaction = client.transaction().await.unwrap();
    producer.enqueue_in_postgres(&transaction, &["postgres"], &options).await.unwrap();
    transaction.commit().await.unwrap();
    #[cfg(feature = "sqlx")]
    {
        use sqlx_core::connection::Connection as _;
        let mut connection = tenure::sqlx_postgres::PgConnection::connect(&dsn()).await.unwrap();
        producer.enqueue_in_sqlx(&mut connection, &["sqlx"], &options).await.unwrap();
        assert_eq!(consumer.dequeue_within(Duration::from_secs(30), 1, 60).await.unwrap().len(), 1);
    }
    assert_eq!(consumer.dequeue_within(Duration::from_secs(30), 1, 60).await.unwrap().len(), 1);
    // The kind of what the database says, without the kernel's crate.
    let error = Store::connect("postgres://localhost:1/app?connect_timeout=1").await.unwrap_err();
    assert!(matches!(&error, Error::Store(error) if error.kind() == tenure::Kind::Unavailable), "{error:?}");
}
