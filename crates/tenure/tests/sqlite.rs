//! The library on a SQLite file.

mod cases;

async fn open(fixed: bool) -> cases::Harness {
    // The folder stays until the process ends: a store outlives the test that opened it by a moment.
    let folder = std::env::var_os("TENURE_TEST_FILES").map_or_else(std::env::temp_dir, Into::into);
    let path = tempfile::tempdir_in(folder).expect("a folder for temporary files").keep().join("jobs.db");
    // These tests do not cut the power, so no commit needs to wait for a disk, which may stall for seconds: `cargo xtask test`
    // names a folder in memory, because checkpoints wait for the disk under any durability.
    cases::Harness::open(format!("{}?durability=crash_only", path.display()), fixed).await
}

cases::suite!(super::open);
