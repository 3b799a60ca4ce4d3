//! The queues.

use tenure_store::{Clear, Kind};

use crate::error::{Error, Result};
use crate::store::{Store, count};
use crate::types::{QueueInfo, QueueMetrics, time};

/// The queues.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// # let store = tenure::Store::connect(":memory:").await?;
/// # store.install().await?;
/// let queue = store.queues().create("mail").await?;
/// assert_eq!(store.queues().get_by_id(queue.id).await?, queue);
/// assert_eq!(store.queues().delete("mail").await?, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct QueueTable {
    pub(crate) store: Store,
}

impl QueueTable {
    /// Its name in the database.
    pub fn table_name(&self) -> &'static str {
        "queue"
    }

    /// A queue by its name.
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn get_by_name(&self, name: &str) -> Result<QueueInfo> {
        Ok(QueueInfo::from(&self.store.queue(name).await?))
    }

    /// A queue by its number.
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn get_by_id(&self, id: i64) -> Result<QueueInfo> {
        Ok(QueueInfo::from(&self.queue(id).await?))
    }

    /// Creates a queue with the configuration's defaults.
    ///
    /// # Errors
    /// `QueueAlreadyExists` for a name that is taken, `ValidationFailed` for one that cannot be.
    pub async fn create(&self, name: &str) -> Result<QueueInfo> {
        self.create_with(name, self.store.config.queue_settings()).await
    }

    /// Creates a queue with settings of its own.
    ///
    /// # Errors
    /// As [`create`](QueueTable::create), and `QueueNotFound` for a dead queue that does not exist.
    pub async fn create_with(&self, name: &str, settings: tenure_store::Settings) -> Result<QueueInfo> {
        match self.store.kernel.queue_create(name, settings).await {
            Ok(queue) => Ok(QueueInfo::from(&queue)),
            Err(error) if error.kind() == Kind::AlreadyExists => {
                Err(Error::QueueAlreadyExists { name: name.to_owned() })
            }
            Err(error) => Err(Error::of_queue(name, error)),
        }
    }

    /// Whether there is a queue of that name.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn exists(&self, name: &str) -> Result<bool> {
        match self.store.queue(name).await {
            Ok(_) => Ok(true),
            Err(Error::QueueNotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes a queue that is not in use. How many there were: 1, or 0 when there was none.
    ///
    /// # Errors
    /// `QueueInUse` while it has live messages, or workers heard of within three heartbeats.
    pub async fn delete(&self, name: &str) -> Result<u64> {
        let fresh = self.store.config.heartbeat_interval().saturating_mul(3);
        match self.store.kernel.queue_delete_unused(name, fresh).await {
            Ok(deleted) => Ok(deleted.into()),
            Err(error) if error.kind() == Kind::InvalidState => {
                Err(Error::QueueInUse { name: name.to_owned(), reason: error.to_string() })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// All queues, by name.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn list(&self) -> Result<Vec<QueueInfo>> {
        Ok(self.store.all_queues().await?.iter().map(QueueInfo::from).collect())
    }

    /// What is in a queue: exact counts, from one walk over it.
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn get_metrics(&self, queue_id: i64) -> Result<QueueMetrics> {
        self.metrics(&self.queue(queue_id).await?).await
    }

    /// Removes every live message, leased ones included, and the dedupe keys. How many messages. The archive and the workers
    /// stay.
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn purge(&self, queue_id: i64) -> Result<u64> {
        let everything = Clear { ready: true, leased: true, scheduled: true };
        let mut gone = 0;
        for lane in self.queue(queue_id).await?.lanes {
            gone += self.store.kernel.lane_clear(lane, everything).await?;
        }
        self.store.kernel.dedupe_clear(queue_id).await?;
        Ok(gone)
    }

    pub(super) async fn queue(&self, id: i64) -> Result<tenure_store::Queue> {
        self.store.kernel.queue_get_by_id(id).await.map_err(|error| Error::of_queue(&id.to_string(), error))
    }

    pub(crate) async fn metrics(&self, queue: &tenure_store::Queue) -> Result<QueueMetrics> {
        let (dead, archived) = self.store.kernel.archive_count(queue.id).await?;
        let mut metrics = QueueMetrics {
            name: queue.name.clone(),
            total_messages: 0,
            pending_messages: 0,
            delayed_messages: 0,
            locked_messages: 0,
            archived_messages: count(archived),
            dead_messages: count(dead),
            oldest_pending_message: None,
            newest_message: None,
        };
        let (mut oldest, mut newest) = (None, None);
        for lane in &queue.lanes {
            let stats = self.store.kernel.lane_stats(*lane).await?;
            metrics.pending_messages += count(stats.ready);
            metrics.delayed_messages += count(stats.scheduled);
            metrics.locked_messages += count(stats.leased);
            oldest = oldest.into_iter().chain(stats.oldest_ready_at).min();
            newest = newest.into_iter().chain(stats.newest_at).max();
        }
        metrics.total_messages = metrics.pending_messages + metrics.delayed_messages + metrics.locked_messages;
        (metrics.oldest_pending_message, metrics.newest_message) = (oldest.map(time), newest.map(time));
        Ok(metrics)
    }
}
