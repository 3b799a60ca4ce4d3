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

/// A port that accepts connections and never says anything, as a frozen server does.
async fn silent_server() -> (tokio::net::TcpListener, String) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

#[tokio::test]
async fn silent_server_is_given_up_after_connect_timeout() {
    let (_listener, address) = silent_server().await;
    let started = Instant::now();
    let error = refused(&format!("postgres://me:s3cret@{address}/app?connect_timeout=1")).await;
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(error.kind(), Kind::Unavailable);
    let text = error.to_string();
    assert!(text.contains(&address) && text.contains("did not answer within 1s (connect_timeout)"), "{text}");
}

#[tokio::test]
async fn next_host_is_tried_after_a_silent_one_and_remembered() {
    let (listener, silent) = silent_server().await;
    let dsn = support::postgres_dsn();
    let dsn = dsn.replace("127.0.0.1:", &format!("{silent},127.0.0.1:"));
    let dsn = format!("{dsn}?schema={}&connect_timeout=2&target_session_attrs=read-write", support::unique());
    let store = Store::connect(&dsn).await.unwrap();
    let tried = async || {
        let accept = tokio::time::timeout(Duration::from_millis(200), listener.accept());
        accept.await.is_ok()
    };
    assert!(tried().await, "the silent host was not tried first");
    while tried().await {}
    store.install().await.unwrap();
    let calls = (0..5).map(|_| store.queue_list("", None, 10));
    for call in futures_util::future::join_all(calls).await {
        call.unwrap();
    }
    assert!(!tried().await, "new connections tried the silent host again");
}

#[tokio::test]
async fn error_names_every_host_that_was_tried() {
    let (_listener, silent) = silent_server().await;
    let error = refused(&format!("postgres://me:s3cret@127.0.0.1:1,{silent}/app?connect_timeout=1")).await;
    assert_eq!(error.kind(), Kind::Unavailable);
    let text = error.to_string();
    assert!(text.contains("127.0.0.1:1: connection refused") && text.contains(&silent), "{text}");
}

#[tokio::test]
async fn processes_are_notified_whatever_the_letters_of_the_schema() {
    for name in ["jobs", "jöbs", "ünï-çødé longer than a channel"] {
        let schema = format!("{} {name}", support::unique());
        let encoded: String = schema.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let dsn = format!("{}?schema={encoded}", support::postgres_dsn());
        let (here, there) = (Store::connect(&dsn).await.unwrap(), Store::connect(&dsn).await.unwrap());
        here.install().await.unwrap();
        let queue = here.queue_create("jobs", Settings::default()).await.unwrap();
        let mut delays = Vec::new();
        // Polls come 200 to 700 ms after the enqueue. A busy machine is late in some rounds, and not in all.
        while delays.last().is_none_or(|last| *last >= Duration::from_millis(150)) {
            assert!(delays.len() < 12, "'{name}': {delays:?}");
            let claim = Claim { wait: Duration::from_secs(60), ..Claim::from_queue(&queue, 1) };
            let waiting = tokio::spawn({
                let there = there.clone();
                async move { (there.claim(claim).await.unwrap().len(), Instant::now()) }
            });
            // Longer than the listeners are counted for, so that the one that has just begun is seen.
            tokio::time::sleep(Duration::from_millis(1300)).await;
            let enqueued = Instant::now();
            here.enqueue(&queue, None, numbered(1)).await.unwrap();
            let (count, at) = waiting.await.unwrap();
            assert_eq!(count, 1);
            delays.push(at - enqueued);
        }
    }
}
