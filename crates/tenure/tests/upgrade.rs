//! A newer program changes the schema under one that runs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::future::IntoFuture as _;
use std::time::Duration;

use tenure::{Admin, Consumer, Delivery, Error, Store};

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_ends_when_a_newer_program_has_broken_the_schema() {
    let dsn = std::env::var("TENURE_TEST_POSTGRES")
        .expect("TENURE_TEST_POSTGRES is not set: run `cargo xtask test tenure`, which starts a throw-away server");
    let schema = format!("newer_{}", std::process::id());
    let store = Store::connect(&format!("{dsn}?schema={schema}")).await.unwrap();
    store.install().await.unwrap();
    Admin::on(&store).create_queue("jobs").await.unwrap();
    let consumer = Consumer::on(&store, "jobs", "host", 1).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let migrated =
        format!("insert into {schema}.migration (version, name, breaking, applied_at) values (9000, 'newest', 1, 1)");
    client.batch_execute(&migrated).await.unwrap();
    let run = consumer.run(|_: Delivery| async { Ok::<_, Error>(()) }).until(std::future::pending::<()>());
    let ended = tokio::time::timeout(Duration::from_secs(30), run.into_future()).await.expect("the loop ends");
    let error = ended.unwrap_err();
    assert!(matches!(error, Error::Migration(_)) && error.to_string().contains("migration 9000"), "{error:?}");
}
