//! The connected database, its tables, and what concerns more than one of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_store::Backend;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::tables::{ArchiveTable, MessageTable, QueueTable, WorkerTable};
use crate::types::{ConcurrencyModel, QueueMessage, Span, SystemStats, WorkerPurgeResult};

/// A connected database: PostgreSQL, SQLite or Turso, chosen by the DSN. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// use tenure::{ConcurrencyModel, Store};
/// let store = Store::connect(":memory:").await?;
/// store.install().await?;
/// store.queues().create("mail").await?;
/// assert_eq!((store.backend_name(), store.concurrency_model()), ("sqlite", ConcurrencyModel::SingleProcess));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Store {
    pub(crate) kernel: tenure_store::Store,
    pub(crate) config: Arc<Config>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The DSN stays out: it may hold a password.
        f.debug_struct("Store").field("backend", &self.backend_name()).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the database that the DSN names. Nothing is written.
    ///
    /// # Errors
    /// `UnsupportedDsn` for a scheme that is unknown or not compiled in; the database's own error otherwise.
    pub async fn connect(dsn: &str) -> Result<Self> {
        Self::connect_with_config(&Config::from_dsn(dsn)).await
    }

    /// The same with all settings.
    ///
    /// # Errors
    /// `InvalidConfig` for a setting that cannot be right, and as [`connect`](Store::connect).
    pub async fn connect_with_config(config: &Config) -> Result<Self> {
        config.validate()?;
        let kernel = tenure_store::Store::connect(&config.full_dsn()).await?;
        Ok(Store { kernel, config: Arc::new(config.clone()) })
    }

    /// A store over a kernel that is already connected, for tests with a clock of their own.
    pub fn from_kernel(kernel: tenure_store::Store, config: Config) -> Self {
        Store { kernel, config: Arc::new(config) }
    }

    /// Creates the tables, or brings them up to date. Safe to call at every start, by any number of processes at once.
    ///
    /// # Errors
    /// `Migration` when the tables were made by a newer version.
    pub async fn install(&self) -> Result<()> {
        Ok(self.kernel.install().await?)
    }

    /// Checks, without writing, that every table is there and that nothing refers to what is gone.
    ///
    /// # Errors
    /// `TableNotFound` with the name of the first table or column that is missing, before `install` too;
    /// `IntegrityViolation` with the first thing that is wrong; `Migration` when `install` has to bring the tables up to date,
    /// or a newer version has changed them.
    pub async fn verify(&self) -> Result<()> {
        Ok(self.kernel.verify().await?)
    }

    /// Ends the use of an embedded database in an orderly way: calls that were begun finish, later ones fail, and everything
    /// is in the file itself afterwards, its `-wal` file empty or gone, so that the file alone can be copied. Dropping the last
    /// clone does the same for SQLite a moment later; a Turso file is complete then only together with its log. PostgreSQL
    /// needs none of this.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> tenure::Result<()> {
    /// let store = tenure::Store::connect(":memory:").await?;
    /// store.install().await?;
    /// store.close().await?;
    /// assert!(store.queues().create("mail").await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The database's own: another process reads the `-wal` file, which then stays, or the file is not at its path any more.
    /// Closing again tries again.
    pub async fn close(&self) -> Result<()> {
        Ok(self.kernel.close().await?)
    }

    /// The queues.
    pub fn queues(&self) -> QueueTable {
        QueueTable { store: self.clone() }
    }

    /// The messages that live.
    pub fn messages(&self) -> MessageTable {
        MessageTable { store: self.clone() }
    }

    /// The workers.
    pub fn workers(&self) -> WorkerTable {
        WorkerTable { store: self.clone() }
    }

    /// The messages that are finished and remembered.
    pub fn archive(&self) -> ArchiveTable {
        ArchiveTable { store: self.clone() }
    }

    /// Which database this is: `postgres`, `sqlite` or `turso`.
    pub fn backend_name(&self) -> &'static str {
        self.kernel.backend().name()
    }

    /// Whether several processes may use this database at the same time.
    pub fn concurrency_model(&self) -> ConcurrencyModel {
        match self.kernel.backend() {
            Backend::Postgres => ConcurrencyModel::MultiProcess,
            _ => ConcurrencyModel::SingleProcess,
        }
    }

    /// Buries what was delivered at least `max_attempts` times, in any queue, and is not leased now. Who it was.
    /// Dequeueing does the same under each queue's own limit; a message whose last lease still runs is left alone.
    ///
    /// # Errors
    /// `ValidationFailed` for a limit below 1.
    pub async fn dlq_batch(&self, max_attempts: i32) -> Result<Vec<i64>> {
        let mut buried = Vec::new();
        for queue in self.all_queues().await? {
            buried.extend(self.bury_exhausted(&queue, max_attempts).await?);
        }
        Ok(buried)
    }

    pub(crate) async fn bury_exhausted(&self, queue: &tenure_store::Queue, max_attempts: i32) -> Result<Vec<i64>> {
        let limit = u32::try_from(max_attempts).ok().filter(|limit| *limit > 0);
        let limit = limit.ok_or_else(|| Error::invalid(format!("max_attempts is {max_attempts}: give at least 1")))?;
        let mut buried = Vec::new();
        for lane in &queue.lanes {
            buried.extend(self.kernel.bury_exhausted(*lane, limit).await?);
        }
        Ok(buried)
    }

    /// Puts a dead message back into its queue: ready at once, with fresh attempts and the same id. None when there is
    /// no dead message with this id: unknown, completed, or replayed before.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn replay_from_dlq(&self, archived_id: i64) -> Result<Option<QueueMessage>> {
        Ok(self.replay(None, &[archived_id]).await?.remove(0))
    }

    pub(crate) async fn replay(&self, queue: Option<i64>, ids: &[i64]) -> Result<Vec<Option<QueueMessage>>> {
        let replayed = self.kernel.archive_replay(queue, ids).await?;
        let mut messages = Vec::with_capacity(replayed.len());
        for message in replayed {
            messages.push(match message {
                None => None,
                Some(message) => {
                    let queue_id = match queue {
                        Some(queue) => queue,
                        None => self.queue_of_lane(message.lane).await?,
                    };
                    Some(QueueMessage::stored(queue_id, message))
                }
            });
        }
        Ok(messages)
    }

    pub(crate) async fn queue_of_lane(&self, lane: i64) -> Result<i64> {
        let queue = self.kernel.lane_queue(lane).await?;
        queue.ok_or_else(|| Error::QueueNotFound { name: format!("of lane {lane}") })
    }

    /// Frees the leases of workers that should have been heard of within `worker_timeout` and were not. How many
    /// messages. A worker that is busy sends its heartbeats all the same, and is left alone.
    ///
    /// # Errors
    /// `ValidationFailed` for a time-out that is not positive.
    pub async fn release_zombie_messages(&self, worker_timeout: impl Into<Span>) -> Result<u64> {
        let timeout = worker_timeout.into().positive("the worker time-out")?;
        Ok(self.kernel.worker_reap(timeout, false).await?.1)
    }

    /// Stops workers that should have been heard of within `timeout` and were not, frees their leases, and forgets
    /// workers that stopped at least that long ago.
    ///
    /// # Errors
    /// `ValidationFailed` for a time-out that is not positive.
    pub async fn purge_stale_workers(&self, timeout: impl Into<Span>) -> Result<WorkerPurgeResult> {
        let timeout = timeout.into().positive("the worker time-out")?;
        let (worker_ids, messages_released) = self.kernel.worker_reap(timeout, true).await?;
        let workers_purged = worker_ids.len() as u64 + self.kernel.worker_purge(timeout).await?;
        Ok(WorkerPurgeResult { workers_purged, messages_released, worker_ids })
    }

    /// What the whole database holds: exact counts, from one walk over each queue.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn get_system_stats(&self) -> Result<SystemStats> {
        let fresh = self.config.heartbeat_interval().saturating_mul(3);
        let census = self.kernel.census(fresh).await?;
        let (mut pending, mut locked, mut delayed) = (0, 0, 0);
        for queue in self.all_queues().await? {
            for lane in queue.lanes {
                let stats = self.kernel.lane_stats(lane).await?;
                (pending, locked, delayed) = (pending + stats.ready, locked + stats.leased, delayed + stats.scheduled);
            }
        }
        Ok(SystemStats {
            total_queues: count(census.queues),
            total_workers: count(census.workers),
            active_workers: count(census.active_workers),
            total_messages: count(pending + locked + delayed),
            pending_messages: count(pending),
            locked_messages: count(locked),
            archived_messages: count(census.archived),
            dead_messages: count(census.dead),
            schema_version: census.schema_version.to_string(),
        })
    }

    /// One round of housekeeping, now. In every queue: buries messages that have expired or run out of attempts where no
    /// consumer dequeues, and removes finished messages as the queue's retention says. In the whole store: removes dedupe keys
    /// whose window has passed and whose messages are gone, rows of routing keys that are not in use, workers that stopped an
    /// hour ago, workers that sent no heartbeat for a day, and what transactions have stored in queues that were deleted before they
    /// committed.
    ///
    /// [`Consumer::run`](crate::Consumer::run) and the server do this about once a minute, one process per store at a time. Call
    /// it yourself, about as often, only where neither runs.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn maintain(&self) -> Result<()> {
        self.kernel.maintain().await?;
        Ok(())
    }

    pub(crate) async fn queue(&self, name: &str) -> Result<tenure_store::Queue> {
        self.kernel.queue_get(name).await.map_err(|error| Error::of_queue(name, error))
    }

    /// Acts on a queue, or on the one that was created anew under its name. Such a queue is remembered: only the first call is
    /// refused and looks it up. The act is told how long it may wait: the second is given what the first has left of it.
    pub(crate) async fn follow<T, F>(
        &self,
        queue: &tenure_store::Queue,
        wait: Duration,
        act: impl Fn(tenure_store::Queue, Duration) -> F,
    ) -> tenure_store::Result<T>
    where
        F: Future<Output = tenure_store::Result<T>>,
    {
        let queue = self.kernel.successor(queue).unwrap_or_else(|| queue.clone());
        let began = Instant::now();
        match act(queue.clone(), wait).await {
            Err(error) if error.kind() == tenure_store::Kind::NotFound => match self.kernel.recreated(&queue).await? {
                Some(queue) => act(queue, wait.saturating_sub(began.elapsed())).await,
                None => Err(error),
            },
            acted => acted,
        }
    }

    pub(crate) async fn all_queues(&self) -> Result<Vec<tenure_store::Queue>> {
        const PAGE: usize = 500;
        let mut queues: Vec<tenure_store::Queue> = Vec::new();
        loop {
            let pivot = queues.last().map_or("", |queue| queue.name.as_str()).to_owned();
            let page = self.kernel.queue_list(&pivot, None, PAGE + 1).await?;
            let full = page.len() > PAGE;
            queues.extend(page.into_iter().filter(|queue| queue.name != pivot));
            if !full {
                return Ok(queues);
            }
        }
    }
}

pub(crate) fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(all(test, feature = "sqlite"))]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_in_a_queue_that_is_created_anew_is_not_begun_again() {
        let store = Store::connect(":memory:").await.unwrap();
        store.install().await.unwrap();
        store.queues().create("jobs").await.unwrap();
        let old = store.queue("jobs").await.unwrap();
        store.kernel.queue_delete("jobs").await.unwrap();
        store.queues().create("jobs").await.unwrap();
        let (wait, first) = (Duration::from_secs(600), Duration::from_millis(20));
        let claim = |queue: tenure_store::Queue, left: Duration| {
            let (kernel, old) = (store.kernel.clone(), old.id);
            async move {
                if queue.id == old {
                    tokio::time::sleep(first).await;
                    return Err(kernel.queue_get("there is none").await.unwrap_err());
                }
                Ok(left)
            }
        };
        let left = store.follow(&old, wait, claim).await.unwrap();
        assert!(left <= wait - first, "{left:?}");
    }
}
