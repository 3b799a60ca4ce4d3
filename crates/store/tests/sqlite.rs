//! Every case of the conformance suite, on SQLite.

mod support;

async fn open() -> tenure_store::conformance::Harness {
    // No case cuts the power, so no commit needs to wait for the disk.
    support::file_with("sqlite:", "?durability=crash_only").await
}

tenure_store::suite!(crate::open);
