//! Stops a running program that has become too old for its database: a newer program has applied a migration that breaks it.
//!
//! Invariants: the schema is looked at by calls that come along, at most every [`EVERY`] for each open database and not at
//! all while nothing is asked of it; a look that fails or takes long keeps no call; a refusal is final.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Db;
use crate::error::Result;

/// How often the schema is looked at. One read of a table of ten rows.
const EVERY: Duration = Duration::from_secs(3);
/// How long a call waits for its look at the schema.
const PATIENCE: Duration = Duration::from_millis(500);

/// What is known about the schema of an open database.
pub(crate) struct Guard {
    opened: Instant,
    /// When the schema is looked at next, in milliseconds since the database was opened.
    next: AtomicU64,
    /// The migration that this program cannot work with; 0: none.
    newer: AtomicI64,
}

impl Default for Guard {
    fn default() -> Self {
        let next = AtomicU64::new(EVERY.as_millis() as u64);
        Guard { opened: Instant::now(), next, newer: AtomicI64::new(0) }
    }
}

impl Guard {
    /// Whether this call is the one that looks.
    fn is_due(&self) -> bool {
        let now = self.opened.elapsed().as_millis() as u64;
        let next = self.next.load(Ordering::Relaxed);
        let later = now + EVERY.as_millis() as u64;
        now >= next && self.next.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn check(&self) -> Result<()> {
        match self.newer.load(Ordering::Relaxed) {
            0 => Ok(()),
            newer => Err(crate::migrate::too_new(newer)),
        }
    }
}

impl Db {
    /// Refuses a call when the tables were changed by a newer program in a way that this one cannot work with.
    pub(super) async fn admit(&self) -> Result<()> {
        let guard = self.guard();
        guard.check()?;
        if guard.is_due()
            && let Ok(Ok(Some(newer))) = tokio::time::timeout(PATIENCE, crate::migrate::newer(self)).await
        {
            guard.newer.store(newer, Ordering::Relaxed);
            let error = crate::migrate::too_new(newer);
            tracing::error!(%error, "this program stops using the database");
            return Err(error);
        }
        Ok(())
    }

    fn guard(&self) -> &Guard {
        match self {
            Db::Postgres(db) => &db.guard,
            #[cfg(feature = "sqlite")]
            Db::Sqlite(db) => &db.guard,
            #[cfg(feature = "turso")]
            Db::Turso(db) => &db.guard,
        }
    }
}
