//! What operators do: tables, queues, dead letters, workers, numbers. Nothing here writes a row that it does not say.

use tenure_store::Settings;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::observe::Observer;
use crate::store::Store;
use crate::types::{
    ArchiveCursor, ArchivedMessage, ConcurrencyModel, QueueInfo, QueueMessage, QueueMetrics, Span, SystemStats,
    WorkerHealthStats, WorkerInfo, WorkerPurgeResult,
};

/// The operator's hand on a database.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// use tenure::{Admin, Config, Settings};
/// let admin = Admin::new(&Config::from_dsn(":memory:")).await?;
/// admin.install().await?;
/// admin.get_or_create_queue("mail").await?;
/// let settings = Settings { max_attempts: Some(3), partitions: 4, ..Settings::default() };
/// admin.create_queue_with("thumbnails", settings).await?;
/// assert_eq!(admin.list_queues().await?.len(), 2);
/// assert_eq!(admin.get_queue_metrics("mail").await?.pending_messages, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Admin {
    store: Store,
    worker: Option<i64>,
}

impl Admin {
    /// Connects. Works on an empty database, and writes nothing.
    ///
    /// # Errors
    /// Why the database cannot be used.
    pub async fn new(config: &Config) -> Result<Self> {
        Ok(Self::on(&Store::connect_with_config(config).await?))
    }

    /// The same over a store that is already connected.
    pub fn on(store: &Store) -> Self {
        Admin { store: store.clone(), worker: None }
    }

    /// The connected database.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Creates the tables, or brings them up to date. Safe to call at every start.
    ///
    /// # Errors
    /// As [`Store::install`].
    pub async fn install(&self) -> Result<()> {
        self.observer("").watch("install", self.store.install()).await
    }

    /// Checks the tables without writing.
    ///
    /// # Errors
    /// As [`Store::verify`].
    pub async fn verify(&self) -> Result<()> {
        self.observer("").watch("verify", self.store.verify()).await
    }

    /// Registers this operator as a worker, for those who want to see it among the others.
    ///
    /// # Errors
    /// `ValidationFailed` for a hostname that cannot be.
    pub async fn register(&mut self, hostname: &str, port: i32) -> Result<WorkerInfo> {
        let info = self.store.workers().register_as("admin", "-", None, hostname, port).await?;
        self.worker = Some(info.id);
        Ok(info)
    }

    /// Says that this operator lives.
    ///
    /// # Errors
    /// `WorkerStopped`, or `WorkerNotFound` before [`register`](Admin::register).
    pub async fn heartbeat(&self) -> Result<()> {
        self.store.workers().heartbeat(self.registered()?).await
    }

    /// Stops this operator's worker.
    ///
    /// # Errors
    /// `InvalidStateTransition`, or `WorkerNotFound` before [`register`](Admin::register).
    pub async fn shutdown(&self) -> Result<()> {
        self.store.workers().shutdown(self.registered()?).await
    }

    fn observer(&self, queue: &str) -> Observer {
        Observer { backend: self.store.backend_name(), queue: queue.to_owned() }
    }

    fn registered(&self) -> Result<i64> {
        self.worker.ok_or(Error::WorkerNotFound { id: 0 })
    }

    /// Creates a queue with the configuration's defaults.
    ///
    /// # Errors
    /// `QueueAlreadyExists` for a name that is taken.
    pub async fn create_queue(&self, name: &str) -> Result<QueueInfo> {
        self.observer(name).watch("create_queue", self.store.queues().create(name)).await
    }

    /// Creates a queue with settings of its own.
    ///
    /// # Errors
    /// `QueueAlreadyExists` for a name that is taken, `QueueNotFound` for a dead queue that does not exist.
    pub async fn create_queue_with(&self, name: &str, settings: Settings) -> Result<QueueInfo> {
        self.observer(name).watch("create_queue", self.store.queues().create_with(name, settings)).await
    }

    /// The queue of that name, created with the configuration's defaults when there is none: for programs that start.
    ///
    /// # Errors
    /// `ValidationFailed` for a name that cannot be.
    pub async fn get_or_create_queue(&self, name: &str) -> Result<QueueInfo> {
        self.get_or_create_queue_with(name, self.store.config.queue_settings()).await
    }

    /// The same with settings of its own for a queue that is created. One that is there keeps its settings: see
    /// [`change_queue`](Admin::change_queue).
    ///
    /// # Errors
    /// `ValidationFailed` for a name or settings that cannot be, `QueueNotFound` for a dead queue that does not exist, when the
    /// queue has to be created.
    pub async fn get_or_create_queue_with(&self, name: &str, settings: Settings) -> Result<QueueInfo> {
        match self.store.queues().get_by_name(name).await {
            Err(Error::QueueNotFound { .. }) => {}
            found => return found,
        }
        match self.create_queue_with(name, settings).await {
            Err(Error::QueueAlreadyExists { .. }) => self.get_queue(name).await,
            created => created,
        }
    }

    /// Changes some of a queue's settings and leaves the others as they are. Consumers that run see the change at once. The
    /// function is called again when another process has changed the queue at the same moment. The number of partitions, the
    /// namespace and the placement are fixed when the queue is created.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> tenure::Result<()> {
    /// # let admin = tenure::Admin::new(&tenure::Config::from_dsn(":memory:")).await?;
    /// # admin.install().await?;
    /// # admin.create_queue("mail").await?;
    /// let queue = admin.change_queue("mail", |settings| settings.max_attempts = Some(9)).await?;
    /// assert_eq!(queue.settings.max_attempts, Some(9));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `QueueNotFound` for the queue or for its dead queue, or `ValidationFailed` for settings that cannot be and for a change of
    /// one that is fixed.
    pub async fn change_queue(&self, name: &str, change: impl Fn(&mut Settings)) -> Result<QueueInfo> {
        let act = async {
            let changed = self.store.kernel.queue_change(name, change).await;
            changed.map(|queue| QueueInfo::from(&queue)).map_err(|error| Error::of_queue(name, error))
        };
        self.observer(name).watch("change_queue", act).await
    }

    /// Replaces all of a queue's settings but the number of partitions, the namespace and the placement, which stay as they were when
    /// the queue was created, whatever is given. [`change_queue`](Admin::change_queue) changes some settings.
    ///
    /// # Errors
    /// `QueueNotFound` for the queue or for its dead queue, or `ValidationFailed` for settings that cannot be.
    pub async fn update_queue(&self, name: &str, settings: Settings) -> Result<QueueInfo> {
        let act = async {
            self.store.queue(name).await?;
            let updated = self.store.kernel.queue_update(name, settings).await;
            updated.map(|queue| QueueInfo::from(&queue)).map_err(|error| Error::of_queue(name, error))
        };
        self.observer(name).watch("update_queue", act).await
    }

    /// Hands nothing out from a queue until it is resumed. Those who hold messages can finish.
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn pause_queue(&self, name: &str) -> Result<()> {
        let act = async {
            let done = self.store.kernel.queue_pause(name).await;
            done.map_err(|error| Error::of_queue(name, error))
        };
        self.observer(name).watch("pause_queue", act).await
    }

    /// Hands out again.
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn resume_queue(&self, name: &str) -> Result<()> {
        let act = async {
            let done = self.store.kernel.queue_resume(name).await;
            done.map_err(|error| Error::of_queue(name, error))
        };
        self.observer(name).watch("resume_queue", act).await
    }

    /// Deletes a queue that is not in use: 1, or 0 when there was none.
    ///
    /// # Errors
    /// `QueueInUse` while it has live messages, or workers heard of within three heartbeats.
    pub async fn delete_queue(&self, name: &str) -> Result<u64> {
        self.observer(name).watch("delete_queue", self.store.queues().delete(name)).await
    }

    /// All queues, by name.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn list_queues(&self) -> Result<Vec<QueueInfo>> {
        self.observer("").watch("list_queues", self.store.queues().list()).await
    }

    /// A queue by its name.
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn get_queue(&self, name: &str) -> Result<QueueInfo> {
        self.observer(name).watch("get_queue", self.store.queues().get_by_name(name)).await
    }

    /// Removes every live message of a queue, leased ones included, and its dedupe keys. How many messages. The archive and
    /// the workers stay.
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn purge_queue(&self, name: &str) -> Result<u64> {
        let act = async { self.store.queues().purge(self.store.queue(name).await?.id).await };
        self.observer(name).watch("purge_queue", act).await
    }

    /// What is in a queue: exact counts, from one walk over it.
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn get_queue_metrics(&self, name: &str) -> Result<QueueMetrics> {
        let act = async { self.store.queues().metrics(&self.store.queue(name).await?).await };
        self.observer(name).watch("get_queue_metrics", act).await
    }

    /// What is in the whole database.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn get_system_stats(&self) -> Result<SystemStats> {
        self.observer("").watch("get_system_stats", self.store.get_system_stats()).await
    }

    /// How the workers are.
    ///
    /// # Errors
    /// `ValidationFailed` for a negative time-out.
    pub async fn worker_health_stats(&self, timeout: impl Into<Span>) -> Result<WorkerHealthStats> {
        self.store.workers().health_stats(timeout).await
    }

    /// Buries what was delivered at least `max_attempts` times in any queue and is not leased now. Who it was.
    ///
    /// # Errors
    /// `ValidationFailed` for a limit below 1.
    pub async fn dlq_batch(&self, max_attempts: i32) -> Result<Vec<i64>> {
        self.observer("").watch("dlq_batch", self.store.dlq_batch(max_attempts)).await
    }

    /// The same in one queue.
    ///
    /// # Errors
    /// `QueueNotFound`, or `ValidationFailed` for a limit below 1.
    pub async fn dlq_batch_of(&self, queue_name: &str, max_attempts: i32) -> Result<Vec<i64>> {
        let act = async { self.store.bury_exhausted(&self.store.queue(queue_name).await?, max_attempts).await };
        self.observer(queue_name).watch("dlq_batch", act).await
    }

    /// Dead messages of a queue, newest first: the first page.
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn list_dead(&self, queue_name: &str, limit: usize) -> Result<Vec<ArchivedMessage>> {
        self.list_dead_after(queue_name, None, limit).await
    }

    /// Dead messages of a queue, newest first: the page behind a cursor, which is the [cursor](ArchivedMessage::cursor) of the
    /// last message of the page before. A message that dies, or is replayed, between two pages moves no other message to another
    /// page.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> tenure::Result<()> {
    /// # use tenure::*;
    /// # let store = Store::connect(":memory:").await?;
    /// # store.install().await?;
    /// # let admin = Admin::on(&store);
    /// # admin.create_queue("mail").await?;
    /// # let producer = Producer::on(&store, "mail", "host-1", 1).await?;
    /// # let consumer = Consumer::on(&store, "mail", "host-1", 2).await?;
    /// # producer.batch_enqueue(&[1, 2, 3]).await?;
    /// # for message in consumer.dequeue().await? { consumer.bury(&message, "broken").await?; }
    /// let mut dead = 0;
    /// let mut after = None;
    /// loop {
    ///     let page = admin.list_dead_after("mail", after, 2).await?;
    ///     let Some(last) = page.last() else { break };
    ///     after = Some(last.cursor());
    ///     dead += page.len();
    /// }
    /// assert_eq!(dead, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn list_dead_after(
        &self,
        queue_name: &str,
        after: Option<ArchiveCursor>,
        limit: usize,
    ) -> Result<Vec<ArchivedMessage>> {
        let act = async {
            let queue = self.store.queue(queue_name).await?;
            // The kernel's pivot is inclusive.
            let pivot = after.map(|last| (last.archived_at.timestamp_micros(), last.id.saturating_sub(1)));
            let dead = self.store.kernel.archive_list(queue.id, true, pivot, limit).await?;
            Ok(dead.into_iter().map(ArchivedMessage::from).collect())
        };
        self.observer(queue_name).watch("list_dead", act).await
    }

    /// How many those are.
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn count_dead(&self, queue_name: &str) -> Result<u64> {
        let act = async {
            let queue = self.store.queue(queue_name).await?;
            Ok(self.store.kernel.archive_count(queue.id).await?.0)
        };
        self.observer(queue_name).watch("count_dead", act).await
    }

    /// Puts a dead message back: ready at once, with fresh attempts and the same id. None when there is no dead message
    /// with this id: unknown, completed, or replayed before.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn replay_from_dlq(&self, archived_id: i64) -> Result<Option<QueueMessage>> {
        self.observer("").watch("replay", self.store.replay_from_dlq(archived_id)).await
    }

    /// Puts dead messages of a queue back, oldest first: all, or of one kind, at most `limit`. How many.
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn replay_dead(&self, queue_name: &str, kind: Option<&str>, limit: usize) -> Result<u64> {
        let act = async {
            let queue = self.store.queue(queue_name).await?;
            let mut replayed = 0;
            while replayed < limit {
                let ids = self.store.kernel.archive_dead(queue.id, kind, (limit - replayed).min(1000)).await?;
                if ids.is_empty() {
                    break;
                }
                let back = self.store.kernel.archive_replay(Some(queue.id), &ids).await?;
                replayed += back.iter().flatten().count();
            }
            Ok(replayed as u64)
        };
        self.observer(queue_name).watch("replay_dead", act).await
    }

    /// Frees the leases of workers that should have been heard of within `worker_timeout` and were not. How many
    /// messages.
    ///
    /// # Errors
    /// `ValidationFailed` for a time-out that is not positive.
    pub async fn release_zombie_messages(&self, worker_timeout: impl Into<Span>) -> Result<u64> {
        self.observer("").watch("release_zombie_messages", self.store.release_zombie_messages(worker_timeout)).await
    }

    /// Stops workers that should have been heard of within `timeout` and were not, frees their leases, and forgets
    /// workers that stopped at least that long ago.
    ///
    /// # Errors
    /// `ValidationFailed` for a time-out that is not positive.
    pub async fn purge_stale_workers(&self, timeout: impl Into<Span>) -> Result<WorkerPurgeResult> {
        self.observer("").watch("purge_stale_workers", self.store.purge_stale_workers(timeout)).await
    }

    /// Forgets finished messages of a queue that ended longer than `age` ago, also those that were
    /// [archived](crate::Consumer::archive) explicitly. How many.
    ///
    /// # Errors
    /// `QueueNotFound`, or `ValidationFailed` for a negative age.
    pub async fn prune_archive(&self, queue_name: &str, age: impl Into<Span>) -> Result<u64> {
        let act = async {
            let (queue, age) = (self.store.queue(queue_name).await?, age.into().get("the age")?);
            let mut gone = 0;
            loop {
                let batch = self.store.kernel.archive_prune(queue.id, Some(age), 1000).await?;
                gone += batch;
                if batch < 1000 {
                    return Ok(gone);
                }
            }
        };
        self.observer(queue_name).watch("prune_archive", act).await
    }

    /// One round of housekeeping in a queue: buries what has expired or run out of attempts, and forgets what its
    /// retention says. [`Consumer::run`](crate::Consumer::run) does this for every queue: see [`Store::maintain`].
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn maintain_queue(&self, name: &str) -> Result<()> {
        let act = async {
            self.store.kernel.maintain_queue(&self.store.queue(name).await?).await?;
            Ok(())
        };
        self.observer(name).watch("maintain_queue", act).await
    }

    /// Whether several processes may use this database at the same time.
    pub fn concurrency_model(&self) -> ConcurrencyModel {
        self.store.concurrency_model()
    }

    /// Which database this is: `postgres`, `sqlite` or `turso`.
    pub fn backend_name(&self) -> &'static str {
        self.store.backend_name()
    }
}
