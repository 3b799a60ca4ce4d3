use super::*;
use crate::Kind;
use crate::conformance::statements::script;
use crate::db::Db;

pub async fn installing_again_changes_nothing(h: &Harness) {
    let queue = h.queue().await;
    h.put(&queue, "x").await;
    let (one, two) = tokio::join!(h.store.install(), h.store.install());
    one.unwrap();
    two.unwrap();
    assert_eq!(payloads(&h.take(&queue, 9).await), ["x"]);
}

pub async fn verify_is_content_with_a_fresh_store(h: &Harness) {
    h.store.verify().await.unwrap();
    let queue = h.queue_with(Settings { partitions: 3, ..Settings::default() }).await;
    h.put(&queue, "x").await;
    h.store.verify().await.unwrap();
    // And names what is wrong with a damaged one.
    script(&h.store, "delete from tenure.lane").await;
    let error = h.store.verify().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Orphans);
    assert!(error.to_string().starts_with("1 rows of message belong to no lane"), "{error}");
    script(&h.store, "drop table tenure.event").await;
    let error = h.store.verify().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged);
    assert!(error.to_string().contains("table event is missing"), "{error}");
}

pub async fn using_a_store_before_install_says_so(h: &Harness) {
    let dsn = match h.store.db() {
        Db::Postgres(db) => h.dsn.replace(&db.schema, "nothing_here"),
        #[cfg(any(feature = "sqlite", feature = "turso"))]
        _ => h.dsn.replace(".db", "-empty.db"),
    };
    assert_ne!(dsn, h.dsn);
    let store = Store::connect(&dsn).await.unwrap();
    for error in [
        store.queue_create("q", Settings::default()).await.unwrap_err(),
        store.queue_get("q").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Schema, "{error:?}");
        assert!(error.to_string().contains("`install`"), "{error}");
    }
    let error = store.verify().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged, "{error:?}");
    assert_eq!(error.to_string(), "table queue is missing: call `install` first");
}

pub async fn a_running_program_stops_when_a_newer_one_has_broken_its_schema(h: &Harness) {
    let queue = h.queue().await;
    let insert = "insert into tenure.migration (version, name, breaking, applied_at) values ";
    script(&h.store, &format!("{insert} (8000, 'newer', 0, 1)")).await;
    let waiting = Claim { wait: Duration::from_secs(300), ..Claim::from_queue(&queue, 1) };
    let (store, started) = (h.store.clone(), std::time::Instant::now());
    let claim = tokio::spawn(async move { store.claim(waiting).await });
    script(&h.store, &format!("{insert} (9000, 'newest', 1, 1)")).await;
    let refused = |error: &crate::Error| {
        assert_eq!(error.kind(), Kind::SchemaNewer, "{error:?}");
        assert!(error.to_string().contains("migration 9000") && error.to_string().contains("upgrade"), "{error}");
    };
    let error = loop {
        match h.store.queue_get("jobs").await {
            Err(error) => break error,
            Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
        assert!(started.elapsed() < Duration::from_secs(30), "the old program goes on");
    };
    refused(&error);
    refused(&h.store.enqueue(&queue, None, numbered(1)).await.unwrap_err());
    refused(&claim.await.unwrap().unwrap_err());
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

pub async fn a_newer_breaking_schema_is_refused(h: &Harness) {
    let insert = "insert into tenure.migration (version, name, breaking, applied_at) values ";
    script(&h.store, &format!("{insert} (8000, 'newer', 0, 1)")).await;
    h.store.install().await.unwrap();
    script(&h.store, &format!("{insert} (9000, 'newest', 1, 1)")).await;
    for error in [h.store.install().await.unwrap_err(), h.store.verify().await.unwrap_err()] {
        assert_eq!(error.kind(), Kind::SchemaNewer);
        assert!(error.to_string().contains("migration 9000") && error.to_string().contains("upgrade"), "{error}");
    }
}
