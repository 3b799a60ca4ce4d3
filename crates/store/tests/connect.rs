//! Each way a connection can fail has its own clear error, which keeps every secret.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::time::{Duration, Instant};

use tenure_store::conformance::{Harness, numbered};
use tenure_store::{Backend, Claim, Kind, Settings, Store};

async fn refused(dsn: &str) -> tenure_store::Error {
    let error = match Store::connect(dsn).await {
        Ok(_) => panic!("{dsn} connected"),
        Err(error) => error,
    };
    assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    error
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_named_at_once() {
    let started = Instant::now();
    let error = refused("postgres://me:s3cret@127.0.0.1:1/app").await;
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(error.kind(), Kind::Unavailable);
    let text = error.to_string();
    assert!(text.contains("127.0.0.1:1") && text.contains("connection refused"), "{text}");
}

#[tokio::test]
async fn a_wrong_password_says_so() {
    let admin = support::postgres().await;
    admin.store.queue_create("any", Settings::default()).await.unwrap();
    let role = "do $$ begin if not exists (select 1 from pg_roles where rolname = 'locked') then \
                create role locked login password 'right'; end if; exception when others then null; end $$";
    tenure_store::conformance::statements::script(&admin.store, role).await;
    let dsn = support::postgres_dsn().replace("postgres@", "locked:s3cret@");
    let error = refused(&dsn).await;
    assert_eq!(error.kind(), Kind::AccessDenied);
    assert!(error.to_string().contains("check user and password"), "{error}");
}

#[tokio::test]
async fn a_missing_database_says_so() {
    let dsn = support::postgres_dsn();
    let server = dsn.strip_suffix("/postgres").expect("the test server's own database");
    let error = refused(&format!("{server}/no_such_database")).await;
    assert_eq!(error.kind(), Kind::DatabaseMissing);
    assert!(error.to_string().contains("no_such_database") && error.to_string().contains("create it first"), "{error}");
}

#[tokio::test]
async fn a_file_in_a_missing_folder_says_so() {
    for scheme in ["sqlite:", "turso://"] {
        let error = refused(&format!("{scheme}/no/such/folder/x.db")).await;
        assert!(matches!(error.kind(), Kind::DatabaseMissing | Kind::Unavailable), "{error:?}");
        assert!(error.to_string().contains("/no/such/folder/x.db"), "{error}");
    }
}

#[tokio::test]
async fn a_file_that_is_not_a_database_says_so() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        file.path(),
        "this is a letter to my aunt, and it is long enough to be taken for a page ".repeat(99),
    )
    .unwrap();
    let error = refused(&format!("sqlite:{}", file.path().display())).await;
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("not a SQLite database"), "{error}");
}

#[tokio::test]
async fn a_turso_host_creates_no_file() {
    let error = refused("turso://my-db.turso.io?auth_token=s3cret").await;
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(!std::path::Path::new("my-db.turso.io?auth_token=s3cret").exists());
    assert!(!std::path::Path::new("my-db.turso.io").exists());
}

#[tokio::test]
async fn a_memory_store_is_one_database_per_handle() {
    for dsn in [":memory:", "sqlite::memory:", "turso::memory:"] {
        let harness = Harness::open(dsn.to_owned()).await;
        let queue = harness.queue().await;
        harness.store.enqueue(&queue, None, numbered(3)).await.unwrap();
        let again = harness.store.clone();
        assert_eq!(again.claim(Claim::from_queue(&queue, 9)).await.unwrap().len(), 3, "{dsn}");
        let other = Harness::open(dsn.to_owned()).await;
        assert_eq!(other.store.queue_get("jobs").await.unwrap_err().kind(), Kind::NotFound, "{dsn}");
    }
}

#[tokio::test]
async fn any_schema_name_works() {
    for name in ["UPPER case", "qu\"ote", "apo'strophe", "ünï-çødé"] {
        let schema = format!("{name} {}", support::unique());
        let encoded: String = schema.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let harness = Harness::open(format!("{}?schema={encoded}", support::postgres_dsn())).await;
        let queue = harness.queue().await;
        harness.store.enqueue(&queue, None, numbered(2)).await.unwrap();
        assert_eq!(harness.take(&queue, 9).await.len(), 2, "{name}");
        harness.store.verify().await.unwrap();
    }
}

#[tokio::test]
async fn unprepared_statements_work_as_behind_a_pooler() {
    let harness =
        Harness::open(format!("{}?schema={}&pgbouncer=true", support::postgres_dsn(), support::unique())).await;
    assert_eq!(harness.store.backend(), Backend::Postgres);
    let queue = harness.queue_with(Settings { max_attempts: Some(1), ..Settings::default() }).await;
    harness.store.enqueue(&queue, None, numbered(50)).await.unwrap();
    harness.store.enqueue(&queue, None, numbered(1)).await.unwrap();
    let taken = harness.take(&queue, 100).await;
    let fences: Vec<_> = taken.iter().map(tenure_store::Message::fence).collect();
    harness.store.complete(&fences[..49]).await.unwrap();
    harness.store.bury(&fences[49..50], "because").await.unwrap();
    harness.advance(30_000);
    assert!(harness.take(&queue, 9).await.is_empty());
    assert_eq!(harness.store.archive_count(queue.id).await.unwrap(), (2, 2));
}
