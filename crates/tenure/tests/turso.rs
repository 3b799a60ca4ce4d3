//! The library on the embedded Turso engine.

#![cfg(feature = "turso")]

mod cases;

async fn open(fixed: bool) -> cases::Harness {
    // Turso always waits for the disk. `cargo xtask test` names a folder in memory, which it removes at its end.
    let folder = std::env::var_os("TENURE_TEST_FILES").map_or_else(std::env::temp_dir, Into::into);
    let path = tempfile::tempdir_in(folder).expect("a folder for temporary files").keep().join("jobs.db");
    cases::Harness::open(format!("turso://{}", path.display()), fixed).await
}

cases::suite!(super::open);
