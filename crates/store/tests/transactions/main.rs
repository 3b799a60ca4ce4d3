//! Acts inside transactions of the caller's own, on PostgreSQL and on SQLite files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod deletions;
#[path = "../support/mod.rs"]
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
    (store, queue, client().await, schema)
}

async fn client() -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&support::postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// How long it takes until a claim that waits has what a transaction commits.
async fn committed_and_taken(store: &Store, queue: &Queue, client: &mut tokio_postgres::Client) -> Duration {
    let task = waiting(store, queue).await;
    let transaction = client.transaction().await.unwrap();
    store.enqueue_in_postgres(&transaction, queue, vec![NewMessage::new("again")]).await.unwrap();
    let started = std::time::Instant::now();
    transaction.commit().await.unwrap();
    assert_eq!(task.await.unwrap().len(), 1);
    started.elapsed()
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
    let mut best = started.elapsed();
    assert_eq!(&taken[0].payload[..], b"yes");
    for _ in 0..3 {
        best = best.min(committed_and_taken(&store, &queue, &mut client).await);
    }
    // Polls come once a second: four of them in a row are not that early by chance.
    assert!(best < Duration::from_millis(700), "{best:?}");

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
    let again = [true, false].map(|expected| (expected, taken.id, taken.attempts));
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

/// Every type that drivers send for a payload resolves to one function, which stores exactly what it was given.
#[tokio::test(flavor = "multi_thread")]
async fn the_sql_functions_store_payloads_of_every_type_as_they_are() {
    use tokio_postgres::types::Type;
    let (store, _, client, schema) = postgres().await;
    let stored = async |id: i64| {
        let message = store.message_get(id).await.unwrap().unwrap();
        (String::from_utf8(message.payload.to_vec()).unwrap(), message.encoding.unwrap_or_default())
    };
    let text = "{\"path\":\"C:\\\\dir\", \"quote\": \"\\\"\", \"b\": 1, \"b\": 2, \"é\": \"日本\\u0000\"}";
    let call = format!("select \"{schema}\".enqueue('jobs', $1)");
    let text_form = |encoding: &str| (text.to_owned(), encoding.to_owned());
    // A literal without a type, as psycopg 2 sends it, and a parameter without a type (OID 0), as psycopg 3 and
    // node-postgres send it, or asyncpg, which asks the server for the type.
    let literal = format!("select \"{schema}\".enqueue('jobs', '{text}')");
    assert_eq!(stored(client.query_one(&literal, &[]).await.unwrap().get(0)).await, text_form("text"));
    let untyped = client.prepare(&call).await.unwrap();
    assert_eq!(untyped.params(), [Type::TEXT]);
    assert_eq!(stored(client.query_one(&untyped, &[&text]).await.unwrap().get(0)).await, text_form("text"));
    // JDBC sends varchar for a String, others text, char or name.
    for kind in [Type::VARCHAR, Type::TEXT, Type::BPCHAR, Type::UNKNOWN] {
        let typed = client.prepare_typed(&call, std::slice::from_ref(&kind)).await.unwrap();
        let id = client.query_one(&typed, &[&text]).await.unwrap().get(0);
        assert_eq!(stored(id).await, text_form("text"), "{kind}");
    }
    let typed = client.prepare_typed(&call, &[Type::BYTEA]).await.unwrap();
    let every_byte: Vec<u8> = (0..=255).collect();
    let id = client.query_one(&typed, &[&every_byte]).await.unwrap().get(0);
    let message = store.message_get(id).await.unwrap().unwrap();
    assert_eq!((&message.payload[..], message.encoding), (&every_byte[..], None));
    // A json value keeps its text; a jsonb value has the text that PostgreSQL gives it.
    let cast = |kind: &str| format!("select \"{schema}\".enqueue('jobs', $1::text::{kind}, encoding => $2)");
    let none = None::<&str>;
    let id = client.query_one(&cast("json"), &[&text, &none]).await.unwrap().get(0);
    assert_eq!(stored(id).await, text_form("json"));
    let id = client.query_one(&cast("jsonb"), &[&"{\"b\": 1,\"a\":2.10, \"b\":3}", &none]).await.unwrap().get(0);
    assert_eq!(stored(id).await, ("{\"a\": 2.10, \"b\": 3}".to_owned(), "json".to_owned()));
    let id = client.query_one(&cast("jsonb"), &[&"[]", &Some("mine")]).await.unwrap().get(0);
    assert_eq!(stored(id).await, ("[]".to_owned(), "mine".to_owned()));
    for kind in [Type::JSON, Type::JSONB] {
        assert_eq!(client.prepare_typed(&call, std::slice::from_ref(&kind)).await.unwrap().params(), [kind]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sql_functions_take_every_option_by_name_and_by_place() {
    let (store, queue, client, schema) = postgres().await;
    let get = async |arguments: &str| {
        let call = format!("select \"{schema}\".enqueue({arguments})");
        let id: i64 =
            client.query_one(&call, &[]).await.unwrap_or_else(|error| panic!("{arguments}: {error:?}")).get(0);
        store.message_get(id).await.unwrap().unwrap()
    };
    for payload in ["'x'", "'x'::bytea", "'[1]'::json", "'[1]'::jsonb"] {
        let arguments = format!(
            "queue => 'jobs', payload => {payload}, key => 'k', dedupe_key => 'd {}', at => '2100-01-01 00:00:00Z', \
             expire => '1 hour', max_attempts => 7, kind => 'mail', encoding => 'e', reference => 'r', announce => false",
            payload.replace('\'', "")
        );
        let named = get(&arguments).await;
        assert_eq!(
            (named.key.as_deref(), named.kind.as_deref(), named.max_attempts),
            (Some("k"), Some("mail"), Some(7))
        );
        assert_eq!((named.encoding.as_deref(), named.reference.as_deref()), (Some("e"), Some("r")));
        assert_eq!(named.due_at, Some(4_102_444_800_000_000));
        assert_eq!(named.expire_at, Some(4_102_444_800_000_000 + 3_600_000_000));
        // In the order of the first version, with `due`, which is the older name of `at`.
        let placed =
            get(&format!("'jobs', {payload}, 'k', null, '2100-01-01Z', null, 3, '1 hour', 'kind', 'e', 'r', true"))
                .await;
        assert_eq!((placed.due_at, placed.max_attempts, placed.kind.as_deref()), (named.due_at, Some(3), Some("kind")));
        assert_eq!(get(&format!("'jobs', {payload}, delay => '0'")).await.due_at, None, "no delay is at once");
    }
    // What the library refuses is refused here too, and nothing is stored.
    let before: u64 = lane_counts(&store, &queue).await;
    for (option, reason) in [
        ("delay => '1 s', at => now()", "more than one of delay, at and due"),
        ("delay => '-1 s'", "the delay is negative"),
        ("expire => '0 s'", "the expiry is not positive"),
        ("max_attempts => 0", "max_attempts is not between"),
        ("key => ''", "the key does not have between 1 and 1024 bytes"),
        ("dedupe_key => repeat('x', 1025)", "the dedupe key does not have between"),
        ("delay => '36501 days'", "the delay is longer than 100 years"),
        ("expire => '36501 days'", "the expiry is longer than 100 years"),
        ("kind => repeat('x', 65537)", "the kind, the encoding or the reference has more than 65536 bytes"),
        ("encoding => repeat('é', 32769)", "the kind, the encoding or the reference has more"),
        ("reference => repeat('x', 65537)", "the kind, the encoding or the reference has more"),
    ] {
        let error =
            client.query_one(&format!("select \"{schema}\".enqueue('jobs', 'x', {option})"), &[]).await.unwrap_err();
        assert!(error.as_db_error().unwrap().message().contains(reason), "{option}: {error:?}");
    }
    assert_eq!(lane_counts(&store, &queue).await, before);
    let longest = "'jobs', 'x', delay => '36500 days', expire => '36500 days', kind => repeat('x', 65536)";
    assert_eq!(get(longest).await.kind.map(|kind| kind.len()), Some(65_536));
}

async fn lane_counts(store: &Store, queue: &Queue) -> u64 {
    let mut count = 0;
    for lane in &queue.lanes {
        let stats = store.lane_stats(*lane).await.unwrap();
        count += stats.ready + stats.leased + stats.scheduled;
    }
    count
}

/// Which lanes there are is what the rows of `lane` say, not the number of partitions that the queue was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn the_sql_functions_use_the_lanes_that_exist() {
    let (store, queue, client, schema) = postgres().await;
    for requested in [1, 32] {
        client.execute(&format!("update \"{schema}\".queue set partitions = {requested}"), &[]).await.unwrap();
        for n in 0..20 {
            let call = format!("select \"{schema}\".enqueue('jobs', 'x', key => $1)");
            let key = (n > 4).then(|| format!("key {n}"));
            let id: i64 = client.query_one(&call, &[&key]).await.unwrap().get(0);
            let lane = store.message_get(id).await.unwrap().unwrap().lane;
            assert!(queue.lanes.contains(&lane));
            if key.is_some() {
                let message = NewMessage { key, ..NewMessage::new("y") };
                let id = store.enqueue(&queue, None, vec![message]).await.unwrap()[0].id;
                assert_eq!(store.message_get(id).await.unwrap().unwrap().lane, lane);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn complete_in_sql_takes_integers_of_every_type() {
    use tokio_postgres::types::Type;
    let (store, queue, client, schema) = postgres().await;
    let call = format!("select \"{schema}\".complete($1, $2)");
    for (id_type, attempt_type) in [
        (Type::UNKNOWN, Type::UNKNOWN),
        (Type::INT8, Type::INT8),
        (Type::INT8, Type::INT4),
        (Type::INT4, Type::INT2),
        (Type::INT2, Type::INT2),
        (Type::INT8, Type::UNKNOWN),
    ] {
        store.enqueue(&queue, None, vec![NewMessage::new("x")]).await.unwrap();
        let id = store.claim(Claim::from_queue(&queue, 1)).await.unwrap().remove(0).id;
        let (id, attempt) = (number(&id_type, id), number(&attempt_type, 1));
        let typed = client.prepare_typed(&call, &[id_type.clone(), attempt_type.clone()]).await.unwrap();
        for expected in [true, false] {
            let row = client.query_one(&typed, &[id.as_ref(), attempt.as_ref()]).await;
            assert_eq!(row.unwrap().get::<_, bool>(0), expected, "{id_type} {attempt_type}");
        }
    }
    store.enqueue(&queue, None, vec![NewMessage::new("x")]).await.unwrap();
    let id = store.claim(Claim::from_queue(&queue, 1)).await.unwrap().remove(0).id;
    for (arguments, expected) in [("2", false), ("1, worker => 99", false), ("1, token => 99", false), ("1", true)] {
        let literal = format!("select \"{schema}\".complete({id}, {arguments})");
        assert_eq!(client.query_one(&literal, &[]).await.unwrap().get::<_, bool>(0), expected, "{arguments}");
    }
}

fn number(of: &tokio_postgres::types::Type, number: i64) -> Box<dyn tokio_postgres::types::ToSql + Sync> {
    use tokio_postgres::types::Type;
    match *of {
        Type::INT2 => Box::new(i16::try_from(number).unwrap()),
        Type::INT4 => Box::new(i32::try_from(number).unwrap()),
        _ => Box::new(number),
    }
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

const NEWER: &str = "insert into tenure.migration (version, name, breaking, applied_at) values (9000, 'newest', 1, 1)";

/// Repeats a call until it is refused because the program is too old.
async fn refused_as_too_old(mut call: impl AsyncFnMut() -> tenure_store::Result<()>) {
    let limit = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        match call().await {
            Ok(()) => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(error) => {
                assert_eq!(error.kind(), Kind::SchemaNewer, "{error:?}");
                return;
            }
        }
        assert!(std::time::Instant::now() < limit, "the old program goes on");
    }
}

/// The store is asked for nothing but acts in transactions of its caller's.
#[tokio::test(flavor = "multi_thread")]
async fn program_that_became_too_old_is_refused_in_its_own_transactions() {
    let (store, queue, mut client, _) = postgres().await;
    tenure_store::conformance::statements::script(&store, NEWER).await;
    refused_as_too_old(async || {
        let transaction = client.transaction().await.unwrap();
        store.enqueue_in_postgres(&transaction, &queue, vec![NewMessage::new("x")]).await.map(drop)
    })
    .await;
    let transaction = client.transaction().await.unwrap();
    let completed = store.complete_in_postgres(&transaction, &[]).await.map(drop);
    let function = store.postgres_function("enqueue_batch").map(drop);
    for refused in [completed, function] {
        assert_eq!(refused.unwrap_err().kind(), Kind::SchemaNewer);
    }

    let h = support::file("sqlite:").await;
    let queue = h.queue().await;
    tenure_store::conformance::statements::script(&h.store, NEWER).await;
    let (file, store) = (tenure_store::dsn_file(&h.dsn).unwrap(), h.store.clone());
    refused_as_too_old(async || {
        let (file, store, queue) = (file.clone(), store.clone(), queue.clone());
        // A thread without a runtime.
        let thread = std::thread::spawn(move || {
            let mut own = rusqlite::Connection::open(file).unwrap();
            let transaction = own.transaction().unwrap();
            store.enqueue_in_sqlite(&transaction, &queue, vec![NewMessage::new("x")]).map(drop)
        });
        tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap()
    })
    .await;
}

/// Every connection of the pool is in use, and others wait for one longer than a call waits for its look at the schema.
#[tokio::test(flavor = "multi_thread")]
async fn program_with_a_busy_pool_notices_that_it_became_too_old() {
    let schema = support::unique();
    let dsn = format!("{}?schema={schema}&pool_size=1", support::postgres_dsn());
    let store = Store::connect(&dsn).await.unwrap();
    store.install().await.unwrap();
    tenure_store::conformance::statements::script(&store, NEWER).await;
    for _ in 0..3 {
        let store = store.clone();
        tokio::spawn(async move {
            loop {
                tenure_store::conformance::statements::script(&store, "select pg_sleep(0.7)").await;
            }
        });
    }
    refused_as_too_old(async || match store.queue_get("jobs").await {
        Err(error) if error.kind() == Kind::NotFound => Ok(()),
        other => other.map(drop),
    })
    .await;
}

/// A purge removes dedupe keys whose messages are gone, while an enqueue takes one of them anew.
#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_a_dedupe_key_that_is_renewed_during_a_purge_stays() {
    let (store, _, mut client, schema) = postgres().await;
    let window = Duration::from_millis(1);
    let settings = Settings { dedupe_window: window, ..Settings::default() };
    let queue = store.queue_create("once", settings).await.unwrap();
    let once = || vec![NewMessage { dedupe: Some("d".into()), ..NewMessage::new("x") }];
    let first = store.enqueue(&queue, None, once()).await.unwrap().remove(0);
    let taken = store.claim(Claim::from_queue(&queue, 1)).await.unwrap();
    assert_eq!(store.complete(&[taken[0].fence()]).await.unwrap(), [Answer::Done]);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let transaction = client.transaction().await.unwrap();
    let renewed = store.enqueue_in_postgres(&transaction, &queue, once()).await.unwrap().remove(0);
    assert!(!renewed.duplicate && renewed.id != first.id);
    let purge = tokio::spawn({
        let (store, queue) = (store.clone(), queue.id);
        async move { store.dedupe_clear(queue).await }
    });
    // The purge waits for the row that the transaction has changed.
    let (watcher, connection) = tokio_postgres::connect(&support::postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let waits = format!(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%delete from%{schema}%dedupe%'"
    );
    let blocked = async {
        while watcher.query_one(&waits, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // It waits until the commit: the limit only ends a test that cannot go on.
    tokio::time::timeout(Duration::from_secs(60), blocked).await.expect("the purge meets the renewed key");
    transaction.commit().await.unwrap();
    purge.await.unwrap().unwrap();
    assert!(store.enqueue(&queue, None, once()).await.unwrap()[0].duplicate, "the key of a living message is gone");
}
