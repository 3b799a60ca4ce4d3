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

/// A store in a file of its own.
#[allow(dead_code)]
pub(crate) async fn file(scheme: &str) -> Harness {
    file_with(scheme, "").await
}

/// A store in a file of its own, with options behind its path. The file is in the folder in memory that `cargo xtask test`
/// names, because Turso always waits for the disk, which may stall for seconds.
#[allow(dead_code)]
pub(crate) async fn file_with(scheme: &str, options: &str) -> Harness {
    let in_memory = std::env::var_os("TENURE_TEST_FILES").map(std::path::PathBuf::from);
    let folder = in_memory.unwrap_or_else(|| std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("stores"));
    std::fs::create_dir_all(&folder).expect("the folder for stores can be written");
    let path = folder.join(format!("{}.db", unique()));
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{suffix}", path.display())).ok();
    }
    Harness::open(format!("{scheme}{}{options}", path.display())).await
}
