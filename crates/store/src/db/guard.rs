//! Stops a running program that has become too old for its database: a newer program has applied a migration that breaks it.
//!
//! Invariants: the schema is looked at when calls come along, at most every [`EVERY`] for each open database and not at all
//! while nothing is asked of it; a look that fails or takes long keeps no call, and goes on when its call has gone (a busy
//! pool lent no connection within the time that a call waits, so a busy program never looked); a refusal is final.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

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
    /// Where the database was opened.
    runtime: Option<Handle>,
}

impl Default for Guard {
    fn default() -> Self {
        let next = AtomicU64::new(EVERY.as_millis() as u64);
        Guard { opened: Instant::now(), next, newer: AtomicI64::new(0), runtime: Handle::try_current().ok() }
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
        self.guard().check()?;
        match self.look() {
            None => Ok(()),
            Some(look) => {
                drop(tokio::time::timeout(PATIENCE, look).await);
                self.guard().check()
            }
        }
    }

    /// The same from what is known already, for calls in transactions of their caller's, which wait for nothing else.
    pub(super) fn admit_at_once(&self) -> Result<()> {
        self.guard().check()?;
        drop(self.look());
        Ok(())
    }

    /// Looks at the schema in a task of its own, if it is time.
    fn look(&self) -> Option<JoinHandle<()>> {
        if !self.guard().is_due() {
            return None;
        }
        // A transaction of the caller's may live on a thread without a runtime.
        let runtime = Handle::try_current().ok().or_else(|| self.guard().runtime.clone())?;
        let db = self.clone();
        Some(runtime.spawn(async move {
            // What keeps the schema from being read is told to the calls that meet it.
            if let Ok(Some(newer)) = crate::migrate::newer(&db).await {
                db.guard().newer.store(newer, Ordering::Relaxed);
                let error = crate::migrate::too_new(newer);
                tracing::error!(%error, "this program stops using the database");
            }
        }))
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
