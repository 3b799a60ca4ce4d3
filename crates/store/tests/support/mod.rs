//! A fresh database for every test.

use std::sync::atomic::{AtomicUsize, Ordering};

use tenure_store::conformance::Harness;

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A name that no other test of this run has.
pub(crate) fn unique() -> String {
    format!("t{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The PostgreSQL server that `cargo xtask test` starts.
#[allow(dead_code)]
pub(crate) fn postgres_dsn() -> String {
    std::env::var("TENURE_TEST_POSTGRES")
        .expect("TENURE_TEST_POSTGRES is not set: run `cargo xtask test postgres`, which starts a throw-away server")
}

/// A store in a schema of its own.
#[allow(dead_code)]
pub(crate) async fn postgres() -> Harness {
    Harness::open(format!("{}?schema={}&pool_size=5", postgres_dsn(), unique())).await
}

/// A store in a file of its own, removed when the test process ends by the system's own clean-up of the folder.
#[allow(dead_code)]
pub(crate) async fn file(scheme: &str) -> Harness {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("stores");
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    let path = folder.join(format!("{}.db", unique()));
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{suffix}", path.display())).ok();
    }
    Harness::open(format!("{scheme}{}", path.display())).await
}
