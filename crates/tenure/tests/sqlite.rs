//! The library on a SQLite file.

mod cases;

async fn open(fixed: bool) -> cases::Harness {
    // The folder stays until the process ends: a store outlives the test that opened it by a moment.
    let path = tempfile::tempdir().expect("a folder for temporary files").keep().join("jobs.db");
    // These tests do not cut the power, so no commit needs to wait for the disk, which may stall for seconds.
    cases::Harness::open(format!("{}?durability=crash_only", path.display()), fixed).await
}

cases::suite!(super::open);
