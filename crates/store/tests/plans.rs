//! Plans are right on a table that statistics call empty and that is full of dead rows: how PostgreSQL queues die.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use tenure_store::Message;
use tenure_store::conformance::numbered;
use tenure_store::conformance::statements::{plan, script};

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
