//! Databases that go away and come back: several stores behind one server, and one that fails. Only on PostgreSQL,
//! which stands behind a gate that can be shut.

use serde_json::{Value, json};

use crate::support::api::{Api, refusal};
use crate::support::gate::Gate;
use crate::support::queue::{complete_request, settings};
use crate::support::text::{SECOND, now, number, time};
use crate::support::{Backend, Place, eventually, postgres_dsn, unique};

/// The configuration of a server at home in SQLite, with a second store.
fn two_stores(home: &Place, second: &str) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    format!(
        "storage:\n  - name: home\n    dsn: {}\n    affinity: 1\n  - name: second\n    dsn: {}\n    affinity: 1\n",
        quoted(&home.dsn),
        quoted(second)
    )
}

fn failing(partition: i64) -> String {
    format!("partition not available; partition '{partition}' is failing, retry again")
}

/// How many items each partition holds; none where the store is away.
async fn totals(api: &Api, queue: &str) -> Vec<i64> {
    api.totals(queue).await.into_iter().map(|(total, _)| total).collect()
}

pub(crate) async fn two_stores_share_the_partitions_of_a_queue(backend: Backend) {
    let (home, away) = (Place::new(Backend::Sqlite), Place::new(backend));
    let server = home.start_with_config(&two_stores(&home, &away.dsn), &[]);
    let api = &server.api();
    let dead = api.plain_queue().await;
    let queue = api.queue(&json!({ "requested_partitions": 4, "dead_queue": dead, "max_attempts": 1 })).await;
    for n in 0..4 {
        api.produce(&queue, &[&n.to_string()]).await;
    }
    assert_eq!(totals(api, &queue).await, [1, 1, 1, 1]);
    let mut seen = Vec::new();
    for _ in 0..4 {
        let lease = api.lease(&queue, 1).await;
        seen.push(lease.partition);
        // What dies in either store ends in the dead queue, which lives at home.
        api.retry(&queue, lease.partition, &json!([{ "id": lease.id(), "dead": true }])).await;
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3]);
    eventually("all dead letters are in the dead queue", async || (api.items(&dead, 0).await.len() == 4).then_some(()))
        .await;
    assert_eq!(totals(api, &queue).await, [0, 0, 0, 0]);
    // Deleted in both: made anew, it is empty.
    api.produce_numbers(&queue, 3).await;
    api.done("queues.delete", &json!({ "queue_name": queue })).await;
    api.done("queues.create", &settings(&queue, &json!({ "requested_partitions": 4 }))).await;
    assert_eq!(totals(api, &queue).await, [0, 0, 0, 0]);
}

pub(crate) async fn a_store_that_is_away_takes_only_its_own_partitions_along(backend: Backend) {
    let (home, away, gate) = (Place::new(Backend::Sqlite), Place::new(backend), Gate::open().await);
    let server = home.start_with_config(&two_stores(&home, &gate.through(&away.dsn)), &[]);
    let api = &server.api();
    let queue = api.queue(&json!({ "requested_partitions": 4, "lease_timeout": "24h" })).await;
    for n in 0..4 {
        api.produce(&queue, &[&n.to_string()]).await;
    }
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(api.lease(&queue, 1).await);
    }
    held.sort_by_key(|lease| lease.partition);
    gate.shut().await;
    for lease in &held[2..] {
        let request = complete_request(&queue, lease.partition, &lease.ids());
        api.refused("queue.complete", &request, 454, &failing(lease.partition)).await;
        let request = json!({ "queue_name": queue, "partition": lease.partition });
        api.refused("storage/items.list", &request, 454, &failing(lease.partition)).await;
    }
    let stats = api.stats(&queue).await;
    let failures: Vec<bool> =
        stats["partitions"].as_array().unwrap().iter().map(|partition| number(partition, "failures") > 0).collect();
    assert_eq!(failures, [false, false, true, true]);
    let health = api.get("/health").await;
    assert_eq!((health.status, &health.json()["status"]), (200, &json!("warn")));
    // The others go on: what is produced goes there, what is leased comes from there.
    for n in 0..6 {
        api.produce(&queue, &[&format!("meanwhile {n}")]).await;
    }
    assert_eq!(totals(api, &queue).await[..2], [4, 4]);
    for _ in 0..6 {
        assert!(api.lease(&queue, 1).await.partition < 2);
    }
    api.complete(&queue, held[0].partition, &held[0].ids()).await;

    gate.reopen();
    let request = complete_request(&queue, held[2].partition, &held[2].ids());
    eventually("the partition is back", async || {
        let (status, answer) = api.call("queue.complete", &request).await;
        (status != 454).then(|| assert_eq!((status, answer), (200, json!({ "code": 200 }))))
    })
    .await;
    // It is in rotation again: it is the emptiest.
    eventually("something is produced there", async || {
        api.produce(&queue, &["after"]).await;
        totals(api, &queue).await[2..].iter().any(|total| *total > 1).then_some(())
    })
    .await;
}

pub(crate) async fn a_server_without_its_database_says_so_and_recovers(backend: Backend) {
    let (place, gate) = (Place::new(backend), Gate::open().await);
    let server = place.start_on(&gate.through(&place.dsn), &[]);
    let api = &server.api();
    let queue = api.plain_queue().await;
    api.produce(&queue, &["held"]).await;
    let lease = api.lease(&queue, 1).await;
    gate.shut().await;
    let message = "internal error, try your request again";
    api.refused("queues.list", &json!({}), 454, message).await;
    let request = complete_request(&queue, 0, &lease.ids());
    api.refused("queue.complete", &request, 454, &failing(0)).await;
    let produce = json!({ "queue_name": queue, "request_timeout": "1s", "items": [{ "utf8": "lost?" }] });
    let (status, answer) = api.call("queue.produce", &produce).await;
    assert_eq!(status, 454, "{answer}");
    let health = api.get("/health").await;
    assert_eq!((health.status, &health.json()["status"]), (503, &json!("fail")));
    assert_eq!(health.json()["checks"]["queues:storage"][0]["output"], "storage check failed");

    gate.reopen();
    eventually("it works again", async || {
        let (status, answer) = api.call("queue.complete", &request).await;
        (status != 454).then(|| assert_eq!((status, answer), (200, json!({ "code": 200 }))))
    })
    .await;
    assert_eq!(api.get("/health").await.status, 200);
    api.produce(&queue, &["after"]).await;
    assert!(api.lease(&queue, 5).await.texts().contains(&"after".to_owned()));
}

pub(crate) async fn a_waiting_lease_outlives_an_absence_of_the_database(backend: Backend) {
    let (place, gate) = (Place::new(backend), Gate::open().await);
    let server = place.start_on(&gate.through(&place.dsn), &[]);
    let api = &server.api();
    let queue = api.plain_queue().await;
    let waiting = api.lease_later(&queue, "patient", 1);
    api.waiting(&queue, 1).await;
    gate.shut().await;
    let message = "internal error, try your request again";
    api.refused("queues.list", &json!({}), 454, message).await;
    gate.reopen();
    eventually("it works again", async || {
        let request = json!({ "queue_name": queue, "request_timeout": "5s", "items": [{ "utf8": "at last" }] });
        (api.call("queue.produce", &request).await.0 == 200).then_some(())
    })
    .await;
    let (status, answer) = waiting.await.unwrap();
    assert_eq!(status, 200, "{answer}");
}

pub(crate) async fn what_nobody_has_thought_of_is_an_internal_error(backend: Backend) {
    let place = Place::new(backend);
    let server = place.start(&[]);
    let api = &server.api();
    api.plain_queue().await;
    let (client, connection) = tokio_postgres::connect(&postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("drop schema \"{}\" cascade", place.schema)).await.unwrap();
    let (status, answer) = api.call("queues.list", &json!({})).await;
    assert_eq!((status, answer), (500, refusal(500, "Internal Error")), "the caller learns nothing about tables");
}

pub(crate) async fn a_server_that_is_too_old_for_its_database_says_so(backend: Backend) {
    let place = Place::new(backend);
    let server = place.start(&[]);
    let api = &server.api();
    let queue = api.plain_queue().await;
    api.produce(&queue, &["held", "stays"]).await;
    let lease = api.lease(&queue, 1).await;
    let (client, connection) = tokio_postgres::connect(&postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let newer = "insert into schema.migration (version, name, breaking, applied_at) values (9000, 'newest', 1, 1)";
    client.batch_execute(&newer.replace("schema", &format!("\"{}\"", place.schema))).await.unwrap();
    let message = "service is too old for its database; upgrade it";
    eventually("it stops using the database", async || {
        let (status, answer) = api.call("queues.list", &json!({})).await;
        (status != 200).then(|| assert_eq!((status, answer), (453, refusal(453, message))))
    })
    .await;
    let item = json!({ "queue_name": queue, "request_timeout": "1s", "items": [{ "utf8": "lost?" }] });
    api.refused("queue.produce", &item, 453, message).await;
    api.refused("queue.complete", &complete_request(&queue, 0, &lease.ids()), 453, message).await;
    let request = json!({ "queue_name": queue, "client_id": "c", "batch_size": 1, "request_timeout": "1s" });
    api.refused("queue.lease", &request, 453, message).await;
    let log = std::fs::read_to_string(place.file("log")).unwrap();
    assert!(log.contains("migration 9000") && log.contains("upgrade the program"), "{log}");
}

/// What `queues.update` asks for says nothing about the partitions that exist.
pub(crate) async fn a_queue_of_which_more_partitions_were_requested_is_whole_for_sql(backend: Backend) {
    let place = Place::new(backend);
    let server = place.start(&[]);
    let api = &server.api();
    let queue = api.queue(&json!({ "requested_partitions": 2 })).await;
    let (client, connection) = tokio_postgres::connect(&postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let store = tenure_store::Store::connect(&place.dsn).await.unwrap();
    for requested in [9, 1] {
        api.done("queues.update", &settings(&queue, &json!({ "requested_partitions": requested }))).await;
        for n in 0..8 {
            let enqueue = format!("select \"{}\".enqueue('{queue}', '{n}')", place.schema);
            client.query_one(&enqueue, &[]).await.unwrap();
        }
        store.verify().await.unwrap();
    }
    let totals = totals(api, &queue).await;
    assert_eq!((totals.len(), totals.iter().sum::<i64>()), (2, 16));
}

pub(crate) async fn a_queue_of_a_store_that_is_no_longer_configured_is_out_of_reach_alone(backend: Backend) {
    let (home, away) = (Place::new(Backend::Sqlite), Place::new(backend));
    let mut server = home.start_with_config(&two_stores(&home, &away.dsn), &[]);
    let spread = server.api().queue(&json!({ "requested_partitions": 2 })).await;
    let at_home = server.api().plain_queue().await;
    server.kill();
    let server = home.start(&[]);
    let api = &server.api();
    let (status, answer) = api.call("queue.stats", &json!({ "queue_name": spread })).await;
    assert_eq!((status, answer), (500, refusal(500, "Internal Error")));
    api.produce(&at_home, &[&unique("item")]).await;
}

/// A server whose clock runs an hour ahead of its database's.
pub(crate) async fn due_times_are_decided_by_the_clock_of_the_database(backend: Backend) {
    let place = Place::new(backend);
    let (client, connection) = tokio_postgres::connect(&postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let behind = format!(
        "create schema {0}_clock;
         create function {0}_clock.clock_timestamp() returns timestamptz language sql volatile
         as $$ select pg_catalog.clock_timestamp() - interval '1 hour' $$",
        place.schema
    );
    client.batch_execute(&behind).await.unwrap();
    let dsn = format!("{}&options=-c%20search_path%3D{}_clock,pg_catalog", place.dsn, place.schema);
    let server = place.start_on(&dsn, &[]);
    let api = &server.api();
    let queue = api.plain_queue().await;
    // By the server's own clock all of them are long due.
    let at = |seconds: i64| time(now() - 3600 * SECOND + seconds * SECOND);
    let item = |text: &str, seconds: i64| json!({ "utf8": text, "enqueue_at": at(seconds) });
    api.produce_items(&queue, &[item("later", 60), item("past", -1)]).await;
    let lease = api.lease(&queue, 9).await;
    assert_eq!(lease.texts(), ["past"]);
    api.retry(&queue, 0, &json!([{ "id": lease.id(), "retry_at": at(60) }])).await;
    api.nothing_to_lease(&queue).await;
    assert_eq!(api.scheduled(&queue, 0).await.len(), 2);
}
