//! Who may install, and what a migration makes of older rows.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use tenure_store::conformance::{Harness, numbered, statements};
use tenure_store::{Settings, Store};

#[tokio::test]
async fn role_without_create_starts_where_the_tables_are_up_to_date() {
    let h = support::postgres().await;
    let queue = h.queue().await;
    let (role, schema) =
        (support::unique(), h.dsn.split("schema=").nth(1).unwrap().split('&').next().unwrap().to_owned());
    let grants = format!(
        "create role {role} login; grant usage on schema {schema} to {role}; \
         grant select, insert, update, delete on all tables in schema {schema} to {role}; \
         grant usage on all sequences in schema {schema} to {role};"
    );
    statements::script(&h.store, &grants).await;
    let store = Store::connect(&h.dsn.replace("postgres@", &format!("{role}@"))).await.unwrap();
    store.install().await.unwrap();
    store.enqueue(&queue, None, numbered(1)).await.unwrap();
    store.verify().await.unwrap();
    // One that has to bring the tables up to date, in a schema that is there, needs no right to create schemas.
    let alter = format!(
        "delete from {schema}.migration where version = 9; alter table {schema}.queue drop column requested; \
         grant create on schema {schema} to {role}; alter table {schema}.queue owner to {role};"
    );
    statements::script(&h.store, &alter).await;
    store.install().await.unwrap();
    store.verify().await.unwrap();
}

/// A database as version 8 leaves it after `queues.update` asked for 9 partitions of a queue that has 4.
async fn repaired(h: Harness) {
    let settings = Settings { partitions: 4, ..Settings::default() };
    let queue = h.queue_with(settings).await;
    let old = "delete from tenure.migration where version = 9";
    for step in [old, "alter table tenure.queue drop column requested", "update tenure.queue set partitions = 9"] {
        statements::script(&h.store, step).await;
    }
    h.store.install().await.unwrap();
    h.store.verify().await.unwrap();
    let found = h.store.queue_get("jobs").await.unwrap();
    assert_eq!((found.settings.partitions, &found.lanes), (9, &queue.lanes));
}

#[tokio::test]
async fn overwritten_number_of_partitions_is_repaired_on_postgres() {
    repaired(support::postgres().await).await;
}

#[tokio::test]
async fn overwritten_number_of_partitions_is_repaired_on_sqlite() {
    repaired(support::file("sqlite:").await).await;
}

#[tokio::test]
async fn sql_functions_find_a_lane_whatever_number_was_requested() {
    let h = support::postgres().await;
    let queue = h.queue_with(Settings { partitions: 4, ..Settings::default() }).await;
    for requested in [1, 1000] {
        h.store.queue_request_partitions("jobs", requested).await.unwrap();
        for n in 0..20 {
            let enqueue =
                format!("select tenure.enqueue('jobs', 'x'); select tenure.enqueue('jobs', 'x', key => 'k{n}')");
            statements::script(&h.store, &enqueue).await;
        }
    }
    h.store.verify().await.unwrap();
    for (n, key) in (0..20).map(|n| (n, format!("k{n}"))) {
        let kept = tenure_store::NewMessage { key: Some(key), ..tenure_store::NewMessage::new("y") };
        let id = h.store.enqueue(&queue, None, vec![kept]).await.unwrap()[0].id;
        let lane = h.store.message_get(id).await.unwrap().unwrap().lane;
        let mut others = 0;
        for state in [tenure_store::State::Ready] {
            let found = h.store.message_list(lane, state, 0, 1000).await.unwrap();
            others += found.iter().filter(|message| message.key.as_deref() == Some(&format!("k{n}"))).count();
        }
        assert_eq!(others, 3, "SQL and the kernel choose one lane for a key");
    }
}
