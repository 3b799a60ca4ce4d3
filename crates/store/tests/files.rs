//! What a file is after its database was closed, and what happens when it goes while it is open.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_store::conformance::{Harness, numbered};
use tenure_store::{Claim, Fence, Kind, NewMessage, Queue, Settings, Store};

fn path(h: &Harness) -> PathBuf {
    tenure_store::dsn_file(&h.dsn).unwrap()
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

async fn put(store: &Store, queue: &Queue) -> Result<(), tenure_store::Error> {
    store.enqueue(queue, None, vec![NewMessage::new("x")]).await.map(drop)
}

async fn refused(store: &Store, queue: &Queue, name: &Path, what: &str) {
    for error in [
        put(store, queue).await.unwrap_err(),
        store.claim(Claim::from_queue(queue, 1)).await.unwrap_err(),
        store.queue_create("more", Settings::default()).await.unwrap_err(),
        store.queue_get("jobs").await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.is_retryable()), (Kind::FileReplaced, false), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&format!("{} was {what}", name.display())) && text.contains("start again"), "{text}");
    }
}

/// Acts in a transaction of the caller's own, on a connection that still has the file open.
fn refused_in_a_transaction(
    store: &Store,
    queue: &Queue,
    fence: Fence,
    connection: &mut rusqlite::Connection,
    kind: Kind,
) {
    let transaction = connection.transaction().unwrap();
    let enqueued = store.enqueue_in_sqlite(&transaction, queue, vec![NewMessage::new("x")]).unwrap_err();
    let completed = store.complete_in_sqlite(&transaction, &[fence]).unwrap_err();
    assert_eq!((enqueued.kind(), completed.kind()), (kind, kind), "{enqueued:?} {completed:?}");
}

#[tokio::test]
async fn transactions_of_the_callers_own_are_refused_when_the_file_was_deleted_or_the_store_was_closed() {
    for deleted in [true, false] {
        let h = support::file("sqlite:").await;
        let queue = h.queue().await;
        put(&h.store, &queue).await.unwrap();
        let fence = h.take_one(&queue).await.fence();
        let mut connection = rusqlite::Connection::open(path(&h)).unwrap();
        // Opens the file: SQLite does so with the first statement.
        connection.query_row("select count(*) from tenure_message", [], |row| row.get::<_, i64>(0)).unwrap();
        if deleted {
            std::fs::remove_file(path(&h)).unwrap();
            refused_in_a_transaction(&h.store, &queue, fence, &mut connection, Kind::FileReplaced);
        } else {
            h.store.close().await.unwrap();
            refused_in_a_transaction(&h.store, &queue, fence, &mut connection, Kind::Closed);
        }
    }
}

async fn deleted_file_is_noticed(scheme: &str) {
    let h = support::file(scheme).await;
    let queue = h.queue().await;
    put(&h.store, &queue).await.unwrap();
    std::fs::remove_file(path(&h)).unwrap();
    refused(&h.store, &queue, &path(&h), "deleted").await;
}

async fn replaced_file_is_noticed_until_it_is_put_back(scheme: &str) {
    let h = support::file(scheme).await;
    let queue = h.queue().await;
    let (path, aside) = (path(&h), beside(&path(&h), "-aside"));
    std::fs::rename(&path, &aside).unwrap();
    std::fs::copy(&aside, &path).unwrap();
    refused(&h.store, &queue, &path, "replaced").await;
    std::fs::rename(&aside, &path).unwrap();
    put(&h.store, &queue).await.unwrap();
    assert_eq!(h.take(&queue, 9).await.len(), 1, "nothing that was refused was stored");
}

#[tokio::test]
async fn deleted_sqlite_file_is_noticed_before_the_next_acknowledgement() {
    deleted_file_is_noticed("sqlite:").await;
}

#[tokio::test]
async fn deleted_turso_file_is_noticed_before_the_next_acknowledgement() {
    deleted_file_is_noticed("turso://").await;
}

#[tokio::test]
async fn replaced_sqlite_file_is_noticed_and_nothing_is_stored_in_the_old_one() {
    replaced_file_is_noticed_until_it_is_put_back("sqlite:").await;
}

#[tokio::test]
async fn replaced_turso_file_is_noticed_and_nothing_is_stored_in_the_old_one() {
    replaced_file_is_noticed_until_it_is_put_back("turso://").await;
}

#[tokio::test]
async fn deleted_write_ahead_log_and_its_index_are_noticed() {
    for suffix in ["-wal", "-shm"] {
        let h = support::file("sqlite:").await;
        let queue = h.queue().await;
        put(&h.store, &queue).await.unwrap();
        let name = beside(&path(&h), suffix);
        std::fs::remove_file(&name).unwrap();
        refused(&h.store, &queue, &name, "deleted").await;
    }
}

#[tokio::test]
async fn file_behind_a_symbolic_link_and_a_relative_path_are_found() {
    let h = support::file("sqlite:").await;
    let link = beside(&path(&h), "-link");
    std::fs::remove_file(&link).ok();
    std::os::unix::fs::symlink(path(&h), &link).unwrap();
    let store = Store::connect(link.to_str().unwrap()).await.unwrap();
    let queue = store.queue_create("jobs", Settings::default()).await.unwrap();
    put(&store, &queue).await.unwrap();
    std::fs::remove_file(&link).unwrap();
    refused(&store, &queue, &link, "deleted").await;
    put(&h.store, &queue).await.unwrap();
}

/// How many messages a copy of the file alone has.
async fn copied(scheme: &str, path: &Path) -> usize {
    let copy = beside(path, "-copy");
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(beside(&copy, suffix)).ok();
    }
    std::fs::copy(path, &copy).unwrap();
    let store = Store::connect(&format!("{scheme}{}", copy.display())).await.unwrap();
    let queue = store.queue_get("jobs").await.unwrap();
    store.claim(Claim::from_queue(&queue, 1000)).await.unwrap().len()
}

#[tokio::test]
async fn closed_store_has_everything_in_the_file_itself() {
    for scheme in ["sqlite:", "turso://"] {
        let h = support::file(scheme).await;
        let queue = h.queue().await;
        h.store.enqueue(&queue, None, numbered(100)).await.unwrap();
        let log = beside(&path(&h), "-wal");
        assert!(log.metadata().unwrap().len() > 0, "{scheme}");
        h.store.close().await.unwrap();
        h.store.close().await.unwrap();
        assert_eq!(log.metadata().map_or(0, |log| log.len()), 0, "{scheme}");
        assert_eq!(copied(scheme, &path(&h)).await, 100, "{scheme}");
        assert_eq!(put(&h.store, &queue).await.unwrap_err().kind(), Kind::Closed, "{scheme}");
    }
}

#[test]
fn store_that_ends_with_its_runtime_has_everything_in_the_file_itself() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let first = runtime();
    let path = first.block_on(async {
        let h = support::file("sqlite:").await;
        let queue = h.queue().await;
        h.store.enqueue(&queue, None, numbered(100)).await.unwrap();
        path(&h)
    });
    drop(first);
    assert!(!beside(&path, "-wal").exists(), "the last connection removes its log");
    assert_eq!(runtime().block_on(copied("sqlite:", &path)), 100);
}

/// Closing that failed is not hidden by closing again, which does what was left to do.
#[tokio::test]
async fn close_that_failed_can_be_repeated() {
    let h = support::file("sqlite:").await;
    let queue = h.queue().await;
    put(&h.store, &queue).await.unwrap();
    let reader = rusqlite::Connection::open(path(&h)).unwrap();
    reader.execute_batch("begin; select count(*) from tenure_message").unwrap();
    for _ in 0..2 {
        let error = h.store.close().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Contended, "{error:?}");
        assert_eq!(put(&h.store, &queue).await.unwrap_err().kind(), Kind::Closed);
    }
    reader.execute_batch("commit").unwrap();
    h.store.close().await.unwrap();
    assert_eq!(beside(&path(&h), "-wal").metadata().map_or(0, |log| log.len()), 0);
    assert_eq!(copied("sqlite:", &path(&h)).await, 1);
    // What happens to the file afterwards is not this store's concern.
    drop(reader);
    std::fs::remove_file(path(&h)).unwrap();
    h.store.close().await.unwrap();
}

#[tokio::test]
async fn close_and_verify_notice_a_deleted_file() {
    for scheme in ["sqlite:", "turso://"] {
        let h = support::file(scheme).await;
        let queue = h.queue().await;
        put(&h.store, &queue).await.unwrap();
        std::fs::remove_file(path(&h)).unwrap();
        assert_eq!(h.store.verify().await.unwrap_err().kind(), Kind::FileReplaced, "{scheme}");
        for _ in 0..2 {
            assert_eq!(h.store.close().await.unwrap_err().kind(), Kind::FileReplaced, "{scheme}");
        }
    }
}

#[tokio::test]
async fn complete_ends_ten_seconds_after_the_call_while_another_process_holds_the_write_lock() {
    let h = support::file("sqlite:").await;
    let queue = h.queue().await;
    put(&h.store, &queue).await.unwrap();
    let fence = h.take_one(&queue).await.fence();
    let other = rusqlite::Connection::open(path(&h)).unwrap();
    other.execute_batch("begin immediate").unwrap();
    let started = std::time::Instant::now();
    let error = h.store.complete(&[fence]).await.unwrap_err();
    assert_eq!((error.kind(), error.is_ambiguous()), (Kind::Contended, false), "{error:?}");
    assert!(started.elapsed().as_secs() < 18, "{:?}", started.elapsed());
    other.execute_batch("commit").unwrap();
    assert_eq!(h.complete(fence).await, tenure_store::Answer::Done);
}

#[tokio::test]
async fn enqueue_that_waited_for_others_to_get_the_write_lock_waits_no_longer_than_they_did() {
    let h = support::file("sqlite:").await;
    let queue = h.queue().await;
    let other = rusqlite::Connection::open(path(&h)).unwrap();
    let mut rounds = Vec::new();
    // A machine that stalls for seconds makes a call late in one round, and not in all.
    while rounds.last().is_none_or(|longest| *longest >= Duration::from_secs(14)) {
        assert!(rounds.len() < 4, "{rounds:?}");
        other.execute_batch("begin immediate").unwrap();
        // One runs in its own call and two in flushers; the last one waits for a flusher first.
        let calls = [0, 100, 200, 3000].map(|after| {
            let (store, queue) = (h.store.clone(), queue.clone());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(after)).await;
                let called = std::time::Instant::now();
                let error = put(&store, &queue).await.unwrap_err();
                (error.kind(), called.elapsed())
            })
        });
        let mut longest = Duration::ZERO;
        for call in calls {
            let (kind, took) = call.await.unwrap();
            assert_eq!(kind, Kind::Contended);
            longest = longest.max(took);
        }
        rounds.push(longest);
        other.execute_batch("commit").unwrap();
        put(&h.store, &queue).await.unwrap();
    }
}
