//! Plans are right on a table that statistics call empty and that is full of dead rows: how PostgreSQL queues die.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::time::Duration;

use tenure_store::conformance::numbered;
use tenure_store::conformance::statements::{plan, script};
use tenure_store::{Message, NewMessage, Settings};

#[tokio::test]
async fn verbs_look_ids_up_by_the_primary_key_and_claims_walk_the_lane() {
    let harness = support::postgres().await;
    let queue = harness.queue().await;
    for _ in 0..5 {
        harness.store.enqueue(&queue, None, numbered(1000)).await.unwrap();
        let fences: Vec<_> = harness.take(&queue, 1000).await.iter().map(Message::fence).collect();
        harness.store.complete(&fences).await.unwrap();
    }
    script(&harness.store, "analyze tenure.message").await;
    let ids = "'{1,2}'";
    let complete = plan(&harness.store, "message/complete", &["null", ids, ids, ids, ids, ids, ids]).await;
    assert!(complete.contains("message_pkey") && !complete.contains("message_lane"), "{complete}");
    let extend = plan(&harness.store, "message/extend", &["null", ids, ids, ids, ids, ids, ids, ids]).await;
    assert!(extend.contains("message_pkey") && !extend.contains("message_lane"), "{extend}");
    let lane = queue.lanes[0].to_string();
    let claim =
        plan(&harness.store, "message/claim", &["null", &lane, "0", "false", "'{0}'", "'{0}'", "'{1,1,1}'"]).await;
    assert!(claim.contains("Index Scan using message_lane") && claim.contains("Tid Scan"), "{claim}");
    assert!(!claim.contains("Seq Scan") && !claim.contains("Sort"), "{claim}");
}

#[tokio::test]
async fn pruning_walks_only_messages_of_its_outcome_that_are_old_enough() {
    let harness = support::postgres().await;
    let queue = harness.queue().await;
    script(
        &harness.store,
        &format!(
            "insert into tenure.archive (id, position, queue, lane, outcome, attempts, created_at, finished_at, payload)
             select -n, -n, {}, {}, case when n % 100 = 0 then 'completed' else 'dead' end, 1, n, n, ''
             from generate_series(1, 20000) n",
            queue.id, queue.lanes[0]
        ),
    )
    .await;
    script(&harness.store, "analyze tenure.archive").await;
    let queue = queue.id.to_string();
    let prune = plan(&harness.store, "archive/prune", &["10000", &queue, "5000::bigint", "'completed'", "1000"]).await;
    let walk = prune.lines().find(|line| line.contains("archive_outcome")).unwrap_or_default();
    assert!(walk.contains("Index"), "{prune}");
    let bound = prune.lines().find(|line| line.contains("Index Cond") && line.contains("outcome")).unwrap_or_default();
    assert!(bound.contains("queue = ") && bound.contains("finished_at <= "), "{prune}");
    assert!(!prune.contains("Seq Scan on archive"), "{prune}");
    let list = plan(&harness.store, "archive/list", &[&queue, "'dead'", "9000", "0", "50"]).await;
    assert!(list.contains("Index Scan Backward using archive_outcome") && !list.contains("Sort"), "{list}");
}

#[tokio::test]
async fn looking_for_orphans_probes_the_gaps_between_living_lanes() {
    let harness = support::postgres().await;
    let (mut first, mut last) = (0, 0);
    for n in 0..40 {
        let queue = harness.store.queue_create(&format!("queue {n}"), Settings::default()).await.unwrap();
        match n {
            0 => first = queue.lanes[0],
            39 => last = queue.lanes[0],
            _ if n % 2 == 0 => drop(harness.store.queue_delete(&queue.name).await.unwrap()),
            _ => {}
        }
    }
    let statements = [
        ("message", "message_lane", "lane"),
        ("scheduled", "scheduled_", "lane"),
        ("key", "key_lease_", "lane"),
        ("archive", "archive_outcome", "queue"),
    ];
    // Also with what a plan is made of before the statistics know about the rows.
    for known in [false, true] {
        if known {
            script(
                &harness.store,
                &format!(
                    "insert into tenure.message (id, lane, leased_until, created_at, attempts, payload)
                     select n, case n % 2 when 0 then {first} else {last} end, 0, 0, 0, '' from generate_series(1, 20000) n;
                     insert into tenure.scheduled (id, lane, due_at, keep_place, created_at, attempts, payload)
                     select n, {first}, n, false, 0, 0, '' from generate_series(20001, 40000) n;
                     insert into tenure.key_lease (lane, key, token, leased_until)
                     select {last}, n, n, n from generate_series(1, 20000) n;
                     insert into tenure.archive (id, position, queue, lane, outcome, attempts, created_at, finished_at, payload)
                     select n, n, {first}, {first}, 'completed', 1, n, n, '' from generate_series(1, 20000) n;
                     analyze tenure.message; analyze tenure.scheduled; analyze tenure.key_lease; analyze tenure.archive"
                ),
            )
            .await;
        }
        for (noun, index, column) in statements {
            let orphans = plan(&harness.store, &format!("{noun}/orphans"), &["1000::bigint"]).await;
            let walk = orphans.lines().find(|line| line.contains(&format!("using {index}"))).unwrap_or_default();
            assert!(walk.contains("Index"), "{noun}: {orphans}");
            let bounds = [format!("{column} > "), format!("{column} < ")];
            let bound = |line: &&str| line.contains("Index Cond") && bounds.iter().all(|bound| line.contains(bound));
            assert!(orphans.lines().any(|line| bound(&line)), "{noun}: {orphans}");
        }
    }
}

/// Every extension rewrote all messages of the key before: 100,000 of them died of it.
#[tokio::test]
async fn extension_of_a_key_writes_none_of_its_messages() {
    let harness = support::postgres().await;
    let queue = harness.queue().await;
    let keyed = (0..300).map(|_| NewMessage { key: Some("k".into()), ..NewMessage::new("x") }).collect();
    harness.store.enqueue(&queue, None, keyed).await.unwrap();
    let held = harness.store.claim_key(&queue.lanes, None, None, Duration::ZERO).await.unwrap().unwrap();
    let (client, connection) = tokio_postgres::connect(&support::postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let schema = harness.dsn.split("schema=").nth(1).and_then(|rest| rest.split('&').next()).unwrap();
    let versions = format!("select string_agg(ctid::text || xmin::text, ' ' order by id) from {schema}.message");
    let before: String = client.query_one(&versions, &[]).await.unwrap().get(0);
    let extended = harness.store.key_extend(&[held.token], Duration::from_secs(60)).await.unwrap();
    assert!(extended[0].is_some());
    let after: String = client.query_one(&versions, &[]).await.unwrap().get(0);
    assert_eq!(after, before);
}
