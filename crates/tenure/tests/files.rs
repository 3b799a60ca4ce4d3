//! What a SQLite or Turso file is after `Store::close`, and what a loop does when its file is deleted or replaced.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::future::IntoFuture as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::{Admin, Consumer, Delivery, Error, Kind, Producer, Store};

const SCHEMES: [&str; 2] = ["sqlite:", "turso://"];

/// The path of a file that does not exist, in a folder of its own.
fn fresh() -> PathBuf {
    let folder = std::env::var_os("TENURE_TEST_FILES").map_or_else(std::env::temp_dir, Into::into);
    tempfile::tempdir_in(folder).unwrap().keep().join("jobs.db")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

async fn open(scheme: &str, path: &Path) -> (Store, Producer, Consumer) {
    let store = Store::connect(&format!("{scheme}{}", path.display())).await.unwrap();
    store.install().await.unwrap();
    Admin::on(&store).get_or_create_queue("jobs").await.unwrap();
    let producer = Producer::on(&store, "jobs", "host", 1).await.unwrap();
    let consumer = Consumer::on(&store, "jobs", "host", 2).await.unwrap();
    (store, producer, consumer)
}

fn has_kind(error: &Error, kind: Kind) -> bool {
    matches!(error, Error::Store(error) if error.kind() == kind)
}

/// Runs a loop until its first message is handled, then does something to the file. The error that the loop ends with.
async fn loop_ends(scheme: &str, path: &Path, harm: impl FnOnce()) -> Error {
    let (_store, producer, consumer) = open(scheme, path).await;
    let (began, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let handle = move |_: Delivery| {
        began.send(()).unwrap();
        async { Ok::<_, Error>(()) }
    };
    let run = consumer.run(handle).until(std::future::pending::<()>()).grace(Duration::from_millis(100));
    let harm = async {
        producer.enqueue("x").await.unwrap();
        begins.recv().await.unwrap();
        harm();
        let error = producer.enqueue("y").await.unwrap_err();
        assert!(has_kind(&error, Kind::FileReplaced), "{scheme}: {error:?}");
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(run.into_future(), harm).0 }).await;
    ended.expect("the loop ends").unwrap_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loop_ends_when_its_file_is_deleted() {
    for scheme in SCHEMES {
        let path = fresh();
        let error = loop_ends(scheme, &path, || std::fs::remove_file(&path).unwrap()).await;
        assert!(has_kind(&error, Kind::FileReplaced) && !error.is_retryable(), "{scheme}: {error:?}");
        let text = error.to_string();
        assert!(text.contains(&format!("{} was deleted", path.display())), "{scheme}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loop_ends_when_another_file_is_renamed_over_its_file() {
    for scheme in SCHEMES {
        let path = fresh();
        let replace = || {
            std::fs::copy(&path, beside(&path, "-backup")).unwrap();
            std::fs::rename(beside(&path, "-backup"), &path).unwrap();
        };
        let error = loop_ends(scheme, &path, replace).await;
        assert!(has_kind(&error, Kind::FileReplaced), "{scheme}: {error:?}");
        assert!(error.to_string().contains(&format!("{} was replaced", path.display())), "{scheme}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_store_has_everything_in_its_file_beside_a_living_producer_and_consumer() {
    for scheme in SCHEMES {
        let path = fresh();
        let (store, producer, consumer) = open(scheme, &path).await;
        producer.batch_enqueue(&(0..100).collect::<Vec<u32>>()).await.unwrap();
        let taken = consumer.dequeue_with_options(30, 60).await.unwrap();
        assert!(consumer.delete_batch(&taken[..20]).await.unwrap().into_iter().all(|done| done));
        assert!(beside(&path, "-wal").metadata().unwrap().len() > 0, "{scheme}: nothing is left to do for the close");
        store.close().await.unwrap();

        // The file alone, while the producer and the consumer still live.
        assert_eq!(beside(&path, "-wal").metadata().map_or(0, |log| log.len()), 0, "{scheme}");
        let copy = beside(&path, "-copy");
        std::fs::copy(&path, &copy).unwrap();
        let copied = Store::connect(&format!("{scheme}{}", copy.display())).await.unwrap();
        copied.verify().await.unwrap();
        let metrics = Admin::on(&copied).get_queue_metrics("jobs").await.unwrap();
        assert_eq!((metrics.locked_messages, metrics.pending_messages), (10, 70), "{scheme}");

        for error in [
            producer.enqueue(&100).await.unwrap_err(),
            consumer.dequeue().await.unwrap_err(),
            consumer.delete_batch(&taken[20..]).await.unwrap_err(),
            consumer.run(|_: Delivery| async { Ok::<_, Error>(()) }).await.unwrap_err(),
        ] {
            assert!(has_kind(&error, Kind::Closed), "{scheme}: {error:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_ends_a_running_loop_and_its_file_is_complete() {
    for scheme in SCHEMES {
        let path = fresh();
        let (store, producer, consumer) = open(scheme, &path).await;
        let (began, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let handle = move |delivery: Delivery| {
            began.send(delivery.json::<u32>().unwrap()).unwrap();
            async { std::future::pending::<Result<(), Error>>().await }
        };
        // It has room for another handler: a full loop asks for nothing, and hears of the close when a handler ends.
        let run = consumer.run(handle).concurrency(11).grace(Duration::from_millis(100));
        let close = async {
            producer.batch_enqueue(&(0..10).collect::<Vec<u32>>()).await.unwrap();
            for _ in 0..10 {
                begins.recv().await.unwrap();
            }
            store.close().await.unwrap();
        };
        let both = async { tokio::join!(run.into_future(), close).0 };
        let ended = tokio::time::timeout(Duration::from_secs(120), both).await.expect("the loop ends");
        assert!(has_kind(&ended.unwrap_err(), Kind::Closed), "{scheme}");
        let copy = beside(&path, "-copy");
        std::fs::copy(&path, &copy).unwrap();
        let copied = Store::connect(&format!("{scheme}{}", copy.display())).await.unwrap();
        let metrics = Admin::on(&copied).get_queue_metrics("jobs").await.unwrap();
        assert_eq!(metrics.total_messages, 10, "{scheme}");
    }
}
