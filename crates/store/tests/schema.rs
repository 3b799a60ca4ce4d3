//! The golden dumps show what the migrations make; `cargo xtask schema` writes them anew.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::path::Path;

use tenure_store::conformance::{Harness, statements};

async fn agrees(harness: Harness, file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/schema").join(file);
    let schema = statements::schema(&harness.store).await;
    if std::env::var("TENURE_WRITE_SCHEMA").is_ok() {
        std::fs::write(&path, &schema).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        schema == golden,
        "{file} is not what the migrations make: run `cargo xtask schema` and read the difference"
    );
}

#[tokio::test]
async fn postgres_has_the_schema_of_the_golden_file() {
    agrees(support::postgres().await, "postgres.txt").await;
}

#[tokio::test]
async fn sqlite_has_the_schema_of_the_golden_file() {
    agrees(support::file("sqlite:").await, "sqlite.sql").await;
}
