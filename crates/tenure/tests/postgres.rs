//! The library on PostgreSQL, in a schema for each test.

mod cases;

use std::sync::atomic::{AtomicUsize, Ordering};

static NEXT: AtomicUsize = AtomicUsize::new(0);

async fn open(fixed: bool) -> cases::Harness {
    let dsn = std::env::var("TENURE_TEST_POSTGRES")
        .expect("TENURE_TEST_POSTGRES is not set: run `cargo xtask test tenure`, which starts a throw-away server");
    let schema = format!("l{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    cases::Harness::open(format!("{dsn}?schema={schema}&pool_size=5"), fixed).await
}

cases::suite!(super::open);
