//! Acts inside transactions of the caller's own, on PostgreSQL and on SQLite files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::time::Duration;

use tenure_store::{Answer, Claim, Due, Kind, Message, NewMessage, Queue, Settings, Store};

async fn waiting(store: &Store, queue: &Queue) -> tokio::task::JoinHandle<Vec<Message>> {
    let (store, queue) = (store.clone(), queue.clone());
    let task = tokio::spawn(async move {
        let claim = Claim { wait: Duration::from_secs(20), ..Claim::from_queue(&queue, 10) };
        store.claim(claim).await.unwrap()
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    task
}

async fn postgres() -> (Store, Queue, tokio_postgres::Client, String) {
    let schema = support::unique();
    let store = Store::connect(&format!("{}?schema={schema}", support::postgres_dsn())).await.unwrap();
    store.install().await.unwrap();
    let queue = store.queue_create("jobs", Settings { partitions: 4, ..Settings::default() }).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&support::postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    (store, queue, client, schema)
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_a_rollback_leaves_nothing_and_a_commit_wakes_consumers() {
    let (store, queue, mut client, _) = postgres().await;
    let task = waiting(&store, &queue).await;
    let transaction = client.transaction().await.unwrap();
    store.enqueue_in_postgres(&transaction, &queue, vec![NewMessage::new("no")]).await.unwrap();
    transaction.rollback().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let messages = vec![NewMessage::new("yes"), NewMessage { dedupe: Some("d".into()), ..NewMessage::new("once") }];
    let enqueued = store.enqueue_in_postgres(&transaction, &queue, messages).await.unwrap();
    assert_eq!(enqueued.len(), 2);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!task.is_finished(), "nothing is there before the commit");
    let started = std::time::Instant::now();
    transaction.commit().await.unwrap();
    let taken = task.await.unwrap();
    assert!(started.elapsed() < Duration::from_millis(700), "{:?}", started.elapsed());
    assert_eq!(&taken[0].payload[..], b"yes");

    let transaction = client.transaction().await.unwrap();
    let fences = [taken[0].fence()];
    assert_eq!(store.complete_in_postgres(&transaction, &fences).await.unwrap(), [Answer::Done]);
    transaction.rollback().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    assert_eq!(store.complete_in_postgres(&transaction, &fences).await.unwrap(), [Answer::Done]);
    transaction.commit().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    assert_eq!(store.complete_in_postgres(&transaction, &fences).await.unwrap(), [Answer::Unknown]);
    drop(transaction);
    store.verify().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sql_functions_do_what_the_library_does() {
    let (store, queue, client, schema) = postgres().await;
    let call = |rest: &str| format!("select \"{schema}\".enqueue('jobs', 'x'::bytea{rest})");
    let task = waiting(&store, &queue).await;
    let id: i64 = client.query_one(&call(", kind => 'k', max_attempts => 3"), &[]).await.unwrap().get(0);
    let taken = task.await.unwrap().remove(0);
    assert_eq!((taken.id, taken.kind.as_deref(), taken.max_attempts), (id, Some("k"), Some(3)));
    let complete = format!("select \"{schema}\".complete($1, $2)");
    let again = [true, false].map(|expected| (expected, taken.id, taken.attempts as i32));
    for (expected, id, attempt) in again {
        assert_eq!(client.query_one(&complete, &[&id, &attempt]).await.unwrap().get::<_, bool>(0), expected);
    }
    // Keys fall into the same partition as the library's.
    for key in ["a", "é", "order-4711", "日本"] {
        let by_sql: i64 = client.query_one(&call(&format!(", key => '{key}'")), &[]).await.unwrap().get(0);
        let keyed = NewMessage { key: Some(key.into()), ..NewMessage::new("y") };
        let by_rust = store.enqueue(&queue, None, vec![keyed]).await.unwrap()[0].id;
        let lane = async |id| store.message_get(id).await.unwrap().unwrap().lane;
        assert_eq!(lane(by_sql).await, lane(by_rust).await, "{key}");
    }
    let first: i64 = client.query_one(&call(", dedupe_key => 'd'"), &[]).await.unwrap().get(0);
    let second: i64 = client.query_one(&call(", dedupe_key => 'd'"), &[]).await.unwrap().get(0);
    assert_eq!(first, second);
    let later: i64 = client.query_one(&call(", delay => '1 hour', expire => '1 hour'"), &[]).await.unwrap().get(0);
    let later = store.message_get(later).await.unwrap().unwrap();
    assert_eq!(later.due_at.unwrap() - later.created_at, 3_600_000_000);
    assert_eq!(later.expire_at.unwrap() - later.created_at, 7_200_000_000);
    let error = client.query_one(&format!("select \"{schema}\".enqueue('nope', '')"), &[]).await.unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("there is no queue named 'nope'"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_a_rollback_leaves_nothing_and_a_commit_wakes_consumers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let store = Store::connect(&path.display().to_string()).await.unwrap();
    store.install().await.unwrap();
    let queue = store.queue_create("jobs", Settings::default()).await.unwrap();
    let task = waiting(&store, &queue).await;
    let mut own = rusqlite::Connection::open(&path).unwrap();
    let transaction = own.transaction().unwrap();
    store.enqueue_in_sqlite(&transaction, &queue, vec![NewMessage::new("no")]).unwrap();
    transaction.rollback().unwrap();
    let transaction = own.transaction().unwrap();
    let later = NewMessage { due: Some(Due::In(Duration::from_secs(60))), ..NewMessage::new("later") };
    store.enqueue_in_sqlite(&transaction, &queue, vec![NewMessage::new("yes"), later]).unwrap();
    transaction.commit().unwrap();
    let taken = task.await.unwrap();
    assert_eq!((taken.len(), &taken[0].payload[..]), (1, &b"yes"[..]));
    let transaction = own.transaction().unwrap();
    assert_eq!(store.complete_in_sqlite(&transaction, &[taken[0].fence()]).unwrap(), [Answer::Done]);
    transaction.commit().unwrap();
    assert_eq!(store.complete(&[taken[0].fence()]).await.unwrap(), [Answer::Unknown]);
    // Another store's transaction is refused.
    let memory = Store::connect(":memory:").await.unwrap();
    let transaction = own.transaction().unwrap();
    let error = memory.enqueue_in_sqlite(&transaction, &queue, vec![NewMessage::new("x")]).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueue_that_commits_after_its_queue_was_deleted_leaves_no_orphan() {
    let (store, queue, mut client, _) = postgres().await;
    let transaction = client.transaction().await.unwrap();
    let later = NewMessage { due: Some(Due::In(Duration::from_secs(60))), ..NewMessage::new("later") };
    let deduped = NewMessage { dedupe: Some("d".into()), ..NewMessage::new("once") };
    let messages = vec![NewMessage::new("x"), later, deduped];
    store.enqueue_in_postgres(&transaction, &queue, messages).await.unwrap();
    let deleting = tokio::spawn({
        let store = store.clone();
        async move { store.queue_delete("jobs").await }
    });
    let limit = std::time::Instant::now() + Duration::from_secs(5);
    while store.queue_get("jobs").await.is_ok() {
        assert!(std::time::Instant::now() < limit, "the queue stays");
    }
    transaction.commit().await.unwrap();
    assert_eq!(deleting.await.unwrap().unwrap(), 3, "the deletion takes the late messages with it");
    store.verify().await.unwrap();
}
