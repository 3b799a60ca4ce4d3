//! The library on the embedded Turso engine.

#![cfg(feature = "turso")]

mod cases;

async fn open(fixed: bool) -> cases::Harness {
    let path = tempfile::tempdir().expect("a folder for temporary files").keep().join("jobs.db");
    cases::Harness::open(format!("turso://{}", path.display()), fixed).await
}

cases::suite!(super::open);
