//! Transactions and functions of the database beside the deletion of their queue, and after it was created anew.

use std::time::Duration;

use tenure_store::{Answer, Claim, Due, Kind, NewMessage, Queue, Settings, Store};
use tokio_postgres::IsolationLevel;

use crate::{client, lane_counts, postgres, support};

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
    let limit = std::time::Instant::now() + Duration::from_secs(60);
    while store.queue_get("jobs").await.is_ok() {
        assert!(std::time::Instant::now() < limit, "the queue stays");
    }
    transaction.commit().await.unwrap();
    assert_eq!(deleting.await.unwrap().unwrap(), 3, "the deletion takes the late messages with it");
    store.verify().await.unwrap();
}

/// The process that deletes the queue ends before the transaction does.
#[tokio::test(flavor = "multi_thread")]
async fn enqueue_that_commits_after_the_process_that_deleted_its_queue_has_ended_is_removed_by_housekeeping() {
    let (store, queue, mut client, schema) = postgres().await;
    let transaction = client.transaction().await.unwrap();
    let later = NewMessage { due: Some(Due::In(Duration::from_secs(60))), ..NewMessage::new("later") };
    let keyed = NewMessage { key: Some("k".into()), ..NewMessage::new("keyed") };
    store.enqueue_in_postgres(&transaction, &queue, vec![NewMessage::new("x"), later, keyed]).await.unwrap();
    let other = Store::connect(&format!("{}?schema={schema}", support::postgres_dsn())).await.unwrap();
    let deleting = tokio::spawn(async move { other.queue_delete("jobs").await });
    let limit = std::time::Instant::now() + Duration::from_secs(60);
    while store.queue_get("jobs").await.is_ok() {
        assert!(std::time::Instant::now() < limit, "the queue stays");
    }
    deleting.abort();
    assert!(deleting.await.unwrap_err().is_cancelled());
    transaction.commit().await.unwrap();
    assert_eq!(store.verify().await.unwrap_err().kind(), Kind::Orphans);
    assert_eq!(store.maintain().await.unwrap().orphans, 3);
    store.verify().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueues_of_two_processes_beside_a_deletion_leave_no_orphan() {
    let (store, queue, _, schema) = postgres().await;
    let other = Store::connect(&format!("{}?schema={schema}", support::postgres_dsn())).await.unwrap();
    let (mut queue, mut stored) = (queue, 0);
    for _ in 0..20 {
        let crowd: Vec<_> = [&store, &other]
            .into_iter()
            .cycle()
            .take(8)
            .map(|store| {
                let (store, queue) = (store.clone(), queue.clone());
                tokio::spawn(async move {
                    for count in 0_u64.. {
                        let later =
                            NewMessage { due: Some(Due::In(Duration::from_secs(60))), ..NewMessage::new("later") };
                        match store.enqueue(&queue, None, vec![NewMessage::new("x"), later]).await {
                            Ok(_) => {}
                            Err(error) if error.kind() == Kind::NotFound => return count,
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                    0
                })
            })
            .collect();
        // A consumer that waits takes messages in the commits of their enqueues.
        let waits = tokio::spawn({
            let (store, claim) =
                (store.clone(), Claim { wait: Duration::from_secs(20), ..Claim::from_queue(&queue, 1) });
            async move { while store.claim(claim.clone()).await.is_ok() {} }
        });
        tokio::time::sleep(Duration::from_millis(30)).await;
        store.queue_delete("jobs").await.unwrap();
        for producer in crowd {
            stored += producer.await.unwrap();
        }
        waits.await.unwrap();
        store.verify().await.unwrap();
        queue = store.queue_create("jobs", Settings { partitions: 4, ..Settings::default() }).await.unwrap();
    }
    assert!(stored > 0, "nothing was stored beside the deletions");
}

/// Calls of the two functions of the database that store messages, with a dedupe key or without.
fn sql_enqueues(schema: &str, dedupe: bool) -> Vec<String> {
    let (named, array) = if dedupe { (", dedupe_key => 'd'", "array['d']") } else { ("", "null") };
    let batch = |delays: &str| {
        format!(
            "select * from \"{schema}\".enqueue_batch('jobs', array['x'::bytea], null, {delays}, null, {array}, null, null, \
             null, null, null, null)"
        )
    };
    vec![
        format!("select \"{schema}\".enqueue('jobs', 'x'{named})"),
        format!("select \"{schema}\".enqueue('jobs', 'x', delay => '1 hour'{named})"),
        batch("null"),
        batch("array[3600000000]"),
    ]
}

/// A call that waits for another transaction's dedupe key has read the lanes before its queue is deleted, and stores its
/// message after.
#[tokio::test(flavor = "multi_thread")]
async fn sql_function_that_waits_while_its_queue_is_deleted_leaves_no_orphan() {
    for n in 0..sql_enqueues("", true).len() {
        let (store, queue, mut holder, schema) = postgres().await;
        let call = sql_enqueues(&schema, true).remove(n);
        let held = holder.transaction().await.unwrap();
        let hold = format!("insert into \"{schema}\".dedupe (queue, key, id, until) values ({}, 'd', 0, 0)", queue.id);
        held.execute(&hold, &[]).await.unwrap();
        let caller = client().await;
        let pid: i32 = caller.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
        let calling = tokio::spawn({
            let call = call.clone();
            async move {
                caller.batch_execute("begin").await.unwrap();
                caller.query(&call, &[]).await.unwrap();
                caller
            }
        });
        let limit = std::time::Instant::now() + Duration::from_secs(20);
        let waits = "select count(*) from pg_locks where pid = $1 and not granted";
        while held.query_one(waits, &[&pid]).await.unwrap().get::<_, i64>(0) == 0 {
            assert!(std::time::Instant::now() < limit, "the call does not wait: {call}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let deleting = tokio::spawn({
            let store = store.clone();
            async move { store.queue_delete("jobs").await }
        });
        while store.queue_get("jobs").await.is_ok() {
            assert!(std::time::Instant::now() < limit, "the queue stays");
        }
        held.rollback().await.unwrap();
        let caller = calling.await.unwrap();
        // A deletion that does not know of the caller ends meanwhile.
        tokio::time::sleep(Duration::from_millis(300)).await;
        caller.batch_execute("commit").await.unwrap();
        assert_eq!(deleting.await.unwrap().unwrap(), 1, "the deletion takes the late message with it: {call}");
        store.verify().await.unwrap_or_else(|error| panic!("{call}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_function_with_a_snapshot_older_than_the_deletion_of_its_queue_is_refused() {
    for n in 0..sql_enqueues("", false).len() {
        let (store, _, mut client, schema) = postgres().await;
        let call = sql_enqueues(&schema, false).remove(n);
        let isolation = IsolationLevel::RepeatableRead;
        let transaction = client.build_transaction().isolation_level(isolation).start().await.unwrap();
        transaction.query(&format!("select 1 from \"{schema}\".queue"), &[]).await.unwrap();
        store.queue_delete("jobs").await.unwrap();
        let error = transaction.query(&call, &[]).await.expect_err(&call);
        assert_eq!(
            error.code(),
            Some(&tokio_postgres::error::SqlState::T_R_SERIALIZATION_FAILURE),
            "{call}: {error:?}"
        );
        drop(transaction);
        store.verify().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_an_enqueue_with_a_snapshot_older_than_the_deletion_of_its_queue_is_refused() {
    let later = || NewMessage { due: Some(Due::In(Duration::from_secs(60))), ..NewMessage::new("later") };
    let deduped = || NewMessage { dedupe: Some("d".into()), ..NewMessage::new("once") };
    let keyed = || NewMessage { key: Some("k".into()), ..NewMessage::new("keyed") };
    for messages in [vec![NewMessage::new("x")], vec![later()], vec![deduped()], vec![NewMessage::new("x"), keyed()]] {
        let (store, _, mut client, schema) = postgres().await;
        for isolation in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
            let queue = store.queue_get("jobs").await.unwrap();
            let transaction = client.build_transaction().isolation_level(isolation).start().await.unwrap();
            transaction.query(&format!("select 1 from \"{schema}\".queue"), &[]).await.unwrap();
            store.queue_delete("jobs").await.unwrap();
            let error = store.enqueue_in_postgres(&transaction, &queue, messages.clone()).await.unwrap_err();
            assert_eq!((error.kind(), error.is_retryable()), (Kind::Contended, true), "{error:?}");
            drop(transaction);
            store.verify().await.unwrap();
            store.queue_create("jobs", Settings { partitions: 4, ..Settings::default() }).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_an_enqueue_is_stored_under_every_isolation_level() {
    use IsolationLevel::{ReadCommitted, RepeatableRead, Serializable};
    let (store, queue, mut client, _) = postgres().await;
    for isolation in [ReadCommitted, RepeatableRead, Serializable] {
        let transaction = client.build_transaction().isolation_level(isolation).start().await.unwrap();
        let messages = vec![NewMessage::new("x"), NewMessage { key: Some("k".into()), ..NewMessage::new("keyed") }];
        store.enqueue_in_postgres(&transaction, &queue, messages).await.unwrap();
        // Settings can be changed meanwhile: only the deletion of the queue waits.
        store.queue_update("jobs", Settings::default()).await.unwrap();
        transaction.commit().await.unwrap();
    }
    assert_eq!(lane_counts(&store, &queue).await, 6);
}

/// Nothing is locked, and nothing else changes, for a queue that is there.
#[tokio::test(flavor = "multi_thread")]
async fn sql_functions_enqueue_under_every_isolation_level() {
    use IsolationLevel::{ReadCommitted, RepeatableRead, Serializable};
    let (store, queue, mut client, schema) = postgres().await;
    for isolation in [ReadCommitted, RepeatableRead, Serializable] {
        for call in sql_enqueues(&schema, false) {
            let transaction = client.build_transaction().isolation_level(isolation).start().await.unwrap();
            transaction.query(&call, &[]).await.unwrap();
            transaction.commit().await.unwrap();
        }
    }
    assert_eq!(lane_counts(&store, &queue).await, 12);
}

/// Deletes the queue and creates it anew, as another process would.
async fn created_anew(dsn: &str) -> Queue {
    let other = Store::connect(dsn).await.unwrap();
    other.queue_delete("jobs").await.unwrap();
    other.queue_create("jobs", Settings { partitions: 2, ..Settings::default() }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_a_transaction_after_a_refusal_reaches_a_queue_that_was_created_anew() {
    let (store, queue, mut client, schema) = postgres().await;
    for round in 1..=2 {
        let new = created_anew(&format!("{}?schema={schema}", support::postgres_dsn())).await;
        let transaction = client.transaction().await.unwrap();
        let error = store.enqueue_in_postgres(&transaction, &queue, vec![NewMessage::new("x")]).await.unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound, "{error:?}");
        drop(transaction);
        let transaction = client.transaction().await.unwrap();
        let keyed = NewMessage { key: Some("k".into()), ..NewMessage::new("b") };
        store.enqueue_in_postgres(&transaction, &queue, vec![NewMessage::new("a"), keyed]).await.unwrap();
        transaction.commit().await.unwrap();
        assert_eq!(
            (lane_counts(&store, &new).await, store.successor(&queue).unwrap().id),
            (2, new.id),
            "round {round}"
        );
    }
    store.verify().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_a_call_after_a_refusal_reaches_a_queue_that_was_created_anew() {
    let h = support::file("sqlite:").await;
    let queue = h.queue_with(Settings { partitions: 4, ..Settings::default() }).await;
    let mut own = rusqlite::Connection::open(tenure_store::dsn_file(&h.dsn).unwrap()).unwrap();
    for round in 1..=2 {
        let new = created_anew(&h.dsn).await;
        let transaction = own.transaction().unwrap();
        let error = h.store.enqueue_in_sqlite(&transaction, &queue, vec![NewMessage::new("x")]).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound, "{error:?}");
        drop(transaction);
        let transaction = own.transaction().unwrap();
        h.store.enqueue_in_sqlite(&transaction, &queue, vec![NewMessage::new("a")]).unwrap();
        transaction.commit().unwrap();
        assert_eq!(
            (lane_counts(&h.store, &new).await, h.store.successor(&queue).unwrap().id),
            (1, new.id),
            "round {round}"
        );
    }
    h.store.verify().await.unwrap();
}

/// A message is completed into the archive, and its queue is deleted, before the completion commits.
#[tokio::test(flavor = "multi_thread")]
async fn completion_that_commits_while_its_queue_is_deleted_leaves_no_orphan() {
    let (store, _, mut client, _) = postgres().await;
    let settings = Settings { retain_completed: Some(Duration::from_secs(3600)), ..Settings::default() };
    let queue = store.queue_create("kept", settings).await.unwrap();
    store.enqueue(&queue, None, vec![NewMessage::new("x")]).await.unwrap();
    let message = store.claim(Claim::from_queue(&queue, 1)).await.unwrap().remove(0);
    let transaction = client.transaction().await.unwrap();
    let pid: i32 = transaction.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    assert_eq!(store.complete_in_postgres(&transaction, &[message.fence()]).await.unwrap(), [Answer::Done]);
    let deleting = tokio::spawn({
        let store = store.clone();
        async move { store.queue_delete("kept").await }
    });
    let limit = std::time::Instant::now() + Duration::from_secs(20);
    let waits = "select count(*) from pg_stat_activity where $1 = any (pg_blocking_pids(pid))";
    while transaction.query_one(waits, &[&pid]).await.unwrap().get::<_, i64>(0) == 0 {
        assert!(std::time::Instant::now() < limit, "the deletion does not wait for the completion");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    transaction.commit().await.unwrap();
    deleting.await.unwrap().unwrap();
    store.verify().await.unwrap();
}
