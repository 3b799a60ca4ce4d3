//! The library on a SQLite file.

mod cases;

async fn open(fixed: bool) -> cases::Harness {
    // The folder stays until the process ends: a store outlives the test that opened it by a moment.
    let path = tempfile::tempdir().expect("a folder for temporary files").keep().join("jobs.db");
    cases::Harness::open(path.display().to_string(), fixed).await
}

cases::suite!(super::open);
