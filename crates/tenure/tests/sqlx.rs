//! What a transaction of sqlx is told when PostgreSQL refuses or is gone, and how many round trips an enqueue takes.

#![cfg(feature = "sqlx")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx_core::connection::Connection as _;
use sqlx_core::executor::Executor as _;
use sqlx_core::sql_str::AssertSqlSafe;
use tenure::sqlx_postgres::PgConnection;
use tenure::{Admin, Consumer, EnqueueOptions, Error, Kind, Producer, Store};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

fn dsn() -> String {
    std::env::var("TENURE_TEST_POSTGRES")
        .expect("TENURE_TEST_POSTGRES is not set: run `cargo xtask test tenure`, which starts a throw-away server")
}

/// A store in a schema of its own, with a queue and who uses it.
async fn queue(schema: &str) -> (Store, Producer, Consumer) {
    let store = Store::connect(&format!("{}?schema={schema}", dsn())).await.unwrap();
    store.install().await.unwrap();
    Admin::on(&store).create_queue("jobs").await.unwrap();
    let producer = Producer::on(&store, "jobs", "host", 1).await.unwrap();
    let consumer = Consumer::on(&store, "jobs", "host", 2).await.unwrap();
    (store, producer, consumer)
}

fn schema(what: &str) -> String {
    format!("sqlx_{what}_{}", std::process::id())
}

fn options() -> EnqueueOptions {
    EnqueueOptions::default()
}

async fn run(connection: &mut PgConnection, sql: String) {
    connection.execute(AssertSqlSafe(sql)).await.unwrap();
}

/// The kind of the kernel's error in one of the library's, and whether the change may have been committed all the same.
fn kind(error: &Error) -> (Kind, bool) {
    match error {
        Error::Store(error) => (error.kind(), error.is_ambiguous()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_serialization_failure_can_be_retried() {
    let schema = schema("old");
    let (_store, producer, consumer) = queue(&schema).await;
    let mut connection = PgConnection::connect(&dsn()).await.unwrap();
    producer.enqueue("held").await.unwrap();
    let held = consumer.dequeue().await.unwrap().remove(0);
    // The queue is deleted, and a message is extended, after the snapshot of the transaction.
    for complete in [true, false] {
        let mut transaction = connection.begin().await.unwrap();
        run(&mut transaction, format!("set transaction isolation level repeatable read; select 1 from {schema}.queue"))
            .await;
        let error = if complete {
            assert!(consumer.extend_visibility(&held, 60).await.unwrap());
            consumer.complete_in_sqlx(&mut transaction, &held).await.unwrap_err()
        } else {
            let kernel = tenure_store::Store::connect(&format!("{}?schema={schema}", dsn())).await.unwrap();
            assert_eq!(kernel.queue_delete("jobs").await.unwrap(), 1);
            producer.enqueue_in_sqlx(&mut transaction, &["x"], &options()).await.unwrap_err()
        };
        assert_eq!(kind(&error), (Kind::Contended, false), "{error:?}");
        assert!(error.is_retryable());
        transaction.rollback().await.unwrap();
    }
    let error = producer.enqueue_in_sqlx(&mut connection, &["x"], &options()).await.unwrap_err();
    assert!(matches!(error, Error::QueueNotFound { name } if name == "jobs"));
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_tables_and_functions_say_to_install() {
    let schema = schema("gone");
    let (_store, producer, consumer) = queue(&schema).await;
    producer.enqueue("held").await.unwrap();
    let held = consumer.dequeue().await.unwrap().remove(0);
    let mut connection = PgConnection::connect(&dsn()).await.unwrap();
    for drop in [format!("drop table {schema}.message"), format!("drop schema {schema} cascade")] {
        run(&mut connection, format!("set client_min_messages = error; {drop}")).await;
        for error in [
            producer.enqueue_in_sqlx(&mut connection, &["x"], &options()).await.unwrap_err(),
            consumer.complete_in_sqlx(&mut connection, &held).await.unwrap_err(),
        ] {
            assert!(matches!(error, Error::Migration(_)), "{error:?}");
            assert!(error.to_string().contains("`install`") && !error.is_retryable(), "{error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_stored_and_who_may_not_are_told_apart() {
    let schema = schema("refused");
    let (_store, producer, _) = queue(&schema).await;
    let mut connection = PgConnection::connect(&dsn()).await.unwrap();
    let role = format!("{schema}_role");
    run(&mut connection, format!("create role {role}; set role {role}")).await;
    let error = producer.enqueue_in_sqlx(&mut connection, &["x"], &options()).await.unwrap_err();
    assert_eq!(kind(&error), (Kind::AccessDenied, false), "{error:?}");
    run(&mut connection, "reset role".into()).await;
    let error = producer.enqueue_in_sqlx(&mut connection, &["x"], &options().kind("a\0b")).await.unwrap_err();
    assert!(matches!(error, Error::ValidationFailed { .. }), "{error:?}");
}

/// A connection through a proxy that counts the answers of the server, each of which ends a round trip, and can be cut.
struct Proxy {
    connection: PgConnection,
    answers: Arc<AtomicUsize>,
    both_ways: [AbortHandle; 2],
}

impl Proxy {
    async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, answers) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let (server, rest) = dsn().split_once('@').map(|(_, rest)| rest.split_once('/').unwrap()).map(own).unwrap();
        let url = format!("postgres://postgres@{address}/{rest}?sslmode=disable");
        let connecting = tokio::spawn(async move { PgConnection::connect(&url).await.unwrap() });
        let (client, server) = (listener.accept().await.unwrap().0, TcpStream::connect(server).await.unwrap());
        let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
            (client.into_split(), server.into_split());
        let up = tokio::spawn(async move { drop(tokio::io::copy(&mut from_client, &mut to_server).await) });
        let counter = answers.clone();
        let down = tokio::spawn(async move {
            // A message of the server is a letter, its length without the letter, and that many bytes with the length.
            while let Ok(letter) = from_server.read_u8().await {
                let length = from_server.read_u32().await.unwrap();
                let mut message = vec![0; length as usize - 4];
                from_server.read_exact(&mut message).await.unwrap();
                if letter == b'Z' {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
                message.splice(0..0, std::iter::once(letter).chain(length.to_be_bytes()));
                to_client.write_all(&message).await.unwrap();
            }
        });
        let both_ways = [up.abort_handle(), down.abort_handle()];
        Proxy { connection: connecting.await.unwrap(), answers, both_ways }
    }

    fn cut(&self) {
        self.both_ways.iter().for_each(AbortHandle::abort);
    }
}

fn own((server, rest): (&str, &str)) -> (String, String) {
    (server.to_owned(), rest.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_is_one_round_trip_however_many_messages_and_options() {
    let (store, producer, consumer) = queue(&schema("trips")).await;
    let mut proxy = Proxy::open().await;
    let mixed: Vec<_> = (0..100).map(|n| (n, options().key(format!("k{}", n % 3)).delay(n).kind("k"))).collect();
    for round in 0..3 {
        let before = proxy.answers.load(Ordering::Relaxed);
        producer.enqueue_in_sqlx(&mut proxy.connection, &[1], &options()).await.unwrap();
        producer.enqueue_in_sqlx(&mut proxy.connection, &vec![2; 1000], &options()).await.unwrap();
        producer.enqueue_each_in_sqlx(&mut proxy.connection, &mixed[1..]).await.unwrap();
        let once = options().dedupe_key("once");
        assert_eq!(producer.enqueue_in_sqlx(&mut proxy.connection, &[3], &once).await.unwrap()[0].duplicate, round > 0);
        let trips = proxy.answers.load(Ordering::Relaxed) - before;
        // The first call prepares the statement.
        assert!(if round == 0 { trips > 4 } else { trips == 4 }, "{trips} round trips for 4 calls in round {round}");
    }
    let message = consumer.dequeue().await.unwrap().remove(0);
    let before = proxy.answers.load(Ordering::Relaxed);
    consumer.complete_in_sqlx(&mut proxy.connection, &message).await.unwrap();
    assert!(proxy.answers.load(Ordering::Relaxed) > before);
    store.verify().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_can_be_retried_and_may_have_stored_only_outside_of_a_transaction() {
    let (_store, producer, consumer) = queue(&schema("lost")).await;
    producer.enqueue("held").await.unwrap();
    let held = consumer.dequeue().await.unwrap().remove(0);
    for in_transaction in [true, false] {
        for complete in [true, false] {
            let mut proxy = Proxy::open().await;
            if in_transaction {
                // Not `begin`: the guard of sqlx would roll back on a connection that is gone.
                std::mem::forget(proxy.connection.begin().await.unwrap());
            }
            proxy.cut();
            let lost = tokio::time::timeout(Duration::from_secs(60), async {
                match complete {
                    true => consumer.complete_in_sqlx(&mut proxy.connection, &held).await.unwrap_err(),
                    false => producer.enqueue_in_sqlx(&mut proxy.connection, &["x"], &options()).await.unwrap_err(),
                }
            });
            let error = lost.await.unwrap();
            assert_eq!(kind(&error), (Kind::Unavailable, !in_transaction), "{error:?}");
            assert!(error.is_retryable());
        }
    }
    // A server that ends the session says so.
    let mut connection = PgConnection::connect(&dsn()).await.unwrap();
    let mut other = PgConnection::connect(&dsn()).await.unwrap();
    let marked = format!("set application_name = 'ended {}'", std::process::id());
    run(&mut connection, marked).await;
    let ends = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'ended {}'";
    run(&mut other, ends.replace("{}", &std::process::id().to_string())).await;
    let error = producer.enqueue_in_sqlx(&mut connection, &["x"], &options()).await.unwrap_err();
    assert_eq!(kind(&error).0, Kind::Unavailable, "{error:?}");
}
