//! The nouns of the library: plain structs with public fields.

mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::de::DeserializeOwned;
use tenure_store::{Fence, Micros};

use crate::error::{Error, Result};
use crate::payload::Payload;

pub use self::worker::{WorkerHealthStats, WorkerInfo, WorkerPurgeResult, WorkerStatus};

/// A time of the database's clock.
pub(crate) fn time(micros: Micros) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(micros).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// How long a lease was when it was taken.
pub(crate) fn length(leased_until: Micros, leased_at: Option<Micros>) -> Duration {
    let length = leased_until.saturating_sub(leased_at.unwrap_or(leased_until));
    Duration::from_micros(u64::try_from(length).unwrap_or(0))
}

/// A length of time: a [`Duration`], a [`chrono::TimeDelta`], or a number of seconds.
///
/// ```
/// use std::time::Duration;
/// use tenure::Span;
/// assert_eq!(Span::from(30u32), Span::from(Duration::from_secs(30)));
/// assert_eq!(Span::from(30u32), Span::from(chrono::TimeDelta::seconds(30)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(Option<Duration>);

impl Span {
    /// The duration, unless it is negative; `what` names it in the error.
    pub(crate) fn get(self, what: &str) -> Result<Duration> {
        self.0.ok_or_else(|| Error::invalid(format!("{what} is negative: give a positive duration")))
    }

    /// The same, and not zero either.
    pub(crate) fn positive(self, what: &str) -> Result<Duration> {
        match self.get(what)? {
            Duration::ZERO => Err(Error::invalid(format!("{what} is zero: give a positive duration"))),
            duration => Ok(duration),
        }
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Span(Some(duration))
    }
}

impl From<TimeDelta> for Span {
    fn from(delta: TimeDelta) -> Self {
        Span(delta.to_std().ok())
    }
}

impl From<u32> for Span {
    fn from(seconds: u32) -> Self {
        Span(Some(Duration::from_secs(seconds.into())))
    }
}

/// A queue.
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
/// let queue: QueueInfo = admin.get_queue("mail").await?;
/// assert_eq!((queue.queue_name.as_str(), queue.settings.max_attempts), ("mail", Some(5)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueInfo {
    /// Its number.
    pub id: i64,
    /// Its name.
    pub queue_name: String,
    /// When it was created.
    pub created_at: DateTime<Utc>,
    /// Since when nothing is handed out from it; none: it runs.
    pub paused_at: Option<DateTime<Utc>>,
    /// Its settings.
    pub settings: tenure_store::Settings,
}

impl From<&tenure_store::Queue> for QueueInfo {
    fn from(queue: &tenure_store::Queue) -> Self {
        QueueInfo {
            id: queue.id,
            queue_name: queue.name.clone(),
            created_at: time(queue.created_at),
            paused_at: queue.paused_at.map(time),
            settings: queue.settings.clone(),
        }
    }
}

/// A message: as it was just enqueued, as it was leased to a consumer, or as it lies in its queue.
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
/// let sent: QueueMessage = producer.enqueue("hello").await?;
/// let leased = consumer.dequeue().await?.remove(0);
/// assert_eq!((leased.id, leased.read_ct, leased.json::<String>()?.as_str()), (sent.id, 1, "hello"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueMessage {
    /// Its id, which stays the same for its whole life.
    pub id: i64,
    /// Its queue.
    pub queue_id: i64,
    /// What it carries.
    pub payload: Payload,
    /// When it is, or will be, visible to consumers.
    pub vt: DateTime<Utc>,
    /// When it was enqueued.
    pub enqueued_at: DateTime<Utc>,
    /// How often it was delivered.
    pub read_ct: i32,
    /// When it was last delivered.
    pub dequeued_at: Option<DateTime<Utc>>,
    /// The worker that enqueued it.
    pub producer_worker_id: Option<i64>,
    /// The worker that holds it, or held it last.
    pub consumer_worker_id: Option<i64>,
    /// When it dies unless it is completed before.
    pub expires_at: Option<DateTime<Utc>>,
    /// How often it may be delivered, when it has a limit of its own.
    pub max_read_ct: Option<i64>,
    /// Its key: see [`MessageQueue`](crate::MessageQueue).
    pub key: Option<String>,
    /// What it is for, in the producer's words.
    pub kind: Option<String>,
    /// How the payload is encoded, in the producer's words; [SQL](crate#sql-from-any-language) says `text` or `json`.
    pub encoding: Option<String>,
    /// Anything else the producer wanted to see again.
    pub reference: Option<String>,
    /// Whether an enqueue stored nothing, because this message has its dedupe key. All fields are then those of the stored
    /// message as it is now: waiting, leased, or finished and in the archive, where `vt` is the time of its end. A message
    /// that is finished and not remembered has its `id` and `enqueued_at` (exact unless the queue's dedupe window was changed
    /// meanwhile), an empty payload, and none of the rest.
    pub duplicate: bool,
    /// What proves the lease; none when it is not leased.
    pub(crate) fence: Option<Fence>,
    /// Whether its handler has completed it in a transaction.
    pub(crate) in_transaction: InTransaction,
}

/// Notes that a message was completed in a transaction of its handler's own, which may have been committed or not: what the
/// run loop cannot see by itself. Two messages are equal whatever this says.
#[derive(Clone, Debug, Default)]
pub(crate) struct InTransaction(Arc<AtomicBool>);

impl InTransaction {
    pub(crate) fn completes(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_completed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl PartialEq for InTransaction {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for InTransaction {}

impl QueueMessage {
    /// Reads the payload as JSON into a type.
    ///
    /// # Errors
    /// `Serialization` when it is not JSON, or not of that type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        self.payload.to().map_err(|source| Error::Serialization { index: self.id, source })
    }

    /// What SQL's `tenure.complete` takes as the `id` of a message that this process holds: its place in line, which is the
    /// message's id until it is snoozed, replayed or moved to the tail. None for a message that is not leased.
    pub fn position(&self) -> Option<i64> {
        self.fence.map(|fence| fence.id)
    }

    /// What SQL's `tenure.complete` takes as the `token` of a message with a key: the lease of its key. None without a key.
    pub fn key_token(&self) -> Option<i64> {
        self.fence.and_then(|fence| fence.token())
    }

    pub(crate) fn stored(queue_id: i64, message: tenure_store::Message) -> Self {
        let visible = message.due_at.unwrap_or(message.leased_until.max(message.created_at));
        QueueMessage {
            id: message.identity(),
            queue_id,
            vt: time(visible),
            enqueued_at: time(message.created_at),
            read_ct: i32::try_from(message.attempts).unwrap_or(i32::MAX),
            dequeued_at: message.leased_at.map(time),
            producer_worker_id: message.producer,
            consumer_worker_id: message.worker,
            expires_at: message.expire_at.map(time),
            max_read_ct: message.max_attempts,
            duplicate: false,
            fence: None,
            in_transaction: InTransaction::default(),
            payload: Payload::bytes(message.payload),
            key: message.key,
            kind: message.kind,
            encoding: message.encoding,
            reference: message.reference,
        }
    }

    /// The answer to an enqueue: the message itself, or the stored one whose duplicate it is.
    pub(crate) fn enqueued(queue_id: i64, message: tenure_store::NewMessage, enqueued: tenure_store::Enqueued) -> Self {
        if let Some(stored) = enqueued.stored {
            return QueueMessage { duplicate: true, ..Self::stored(queue_id, *stored) };
        }
        let message = if enqueued.duplicate { tenure_store::NewMessage::default() } else { message };
        QueueMessage {
            id: enqueued.id,
            queue_id,
            payload: Payload::bytes(message.payload),
            vt: time(enqueued.due_at.unwrap_or(enqueued.created_at)),
            enqueued_at: time(enqueued.created_at),
            read_ct: 0,
            dequeued_at: None,
            producer_worker_id: message.producer,
            consumer_worker_id: None,
            expires_at: enqueued.expire_at.map(time),
            max_read_ct: message.max_attempts.map(i64::from),
            key: message.key,
            kind: message.kind,
            encoding: message.encoding,
            reference: message.reference,
            duplicate: enqueued.duplicate,
            fence: None,
            in_transaction: InTransaction::default(),
        }
    }

    pub(crate) fn leased(queue_id: i64, message: tenure_store::Message) -> Self {
        let fence = message.fence();
        QueueMessage { fence: Some(fence), ..Self::stored(queue_id, message) }
    }
}

/// A finished message that is remembered.
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
/// producer.enqueue("hello").await?;
/// let message = consumer.dequeue().await?.remove(0);
/// let kept: ArchivedMessage = consumer.archive(&message).await?.expect("the lease is ours");
/// assert_eq!((kept.original_msg_id, kept.disposition), (message.id, Disposition::Completed));
/// assert!(kept.get_processing_duration().is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArchivedMessage {
    /// Its id, the same as when it lived.
    pub id: i64,
    /// The same once more, under the name that the archive's readers know.
    pub original_msg_id: i64,
    /// Its queue.
    pub queue_id: i64,
    /// The worker that enqueued it.
    pub producer_worker_id: Option<i64>,
    /// The worker that held it last.
    pub consumer_worker_id: Option<i64>,
    /// What it carried.
    pub payload: Payload,
    /// When it was enqueued.
    pub enqueued_at: DateTime<Utc>,
    /// When it ended, after which it was never visible again.
    pub vt: DateTime<Utc>,
    /// How often it was delivered.
    pub read_ct: i32,
    /// When it ended.
    pub archived_at: DateTime<Utc>,
    /// When it was last delivered.
    pub dequeued_at: Option<DateTime<Utc>>,
    /// How it ended: a message that was completed on its last attempt is completed, not dead.
    pub disposition: Disposition,
    /// Why, when it died.
    pub reason: Option<String>,
    /// Its key.
    pub key: Option<String>,
    /// What it was for.
    pub kind: Option<String>,
    /// How the payload is encoded, in the producer's words.
    pub encoding: Option<String>,
    /// What the producer wanted to see again.
    pub reference: Option<String>,
    /// How often it could be delivered at most, if it had a limit of its own.
    pub max_read_ct: Option<i64>,
}

impl ArchivedMessage {
    /// From its last delivery to its end.
    pub fn get_processing_duration(&self) -> Option<Duration> {
        self.dequeued_at.and_then(|at| (self.archived_at - at).to_std().ok())
    }

    /// Where the next page of a list that ends with this message begins: see [`Admin::list_dead_after`](crate::Admin::list_dead_after).
    pub fn cursor(&self) -> ArchiveCursor {
        ArchiveCursor { archived_at: self.archived_at, id: self.id }
    }
}

/// A place in a list of finished messages: behind the message that ended then and has this id. It needs no connection and can be
/// kept by a client, for example in a link to the next page.
///
/// ```
/// let cursor = tenure::ArchiveCursor { archived_at: chrono::Utc::now(), id: 4711 };
/// assert_eq!(cursor, cursor.clone());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveCursor {
    /// When the message ended.
    pub archived_at: DateTime<Utc>,
    /// Its id.
    pub id: i64,
}

impl From<tenure_store::Archived> for ArchivedMessage {
    fn from(archived: tenure_store::Archived) -> Self {
        ArchivedMessage {
            id: archived.id,
            original_msg_id: archived.id,
            queue_id: archived.queue,
            producer_worker_id: archived.producer,
            consumer_worker_id: archived.worker,
            payload: Payload::bytes(archived.payload),
            enqueued_at: time(archived.created_at),
            vt: time(archived.finished_at),
            read_ct: i32::try_from(archived.attempts).unwrap_or(i32::MAX),
            archived_at: time(archived.finished_at),
            dequeued_at: archived.leased_at.map(time),
            disposition: match archived.outcome {
                tenure_store::Outcome::Completed => Disposition::Completed,
                tenure_store::Outcome::Dead => Disposition::Dead,
                tenure_store::Outcome::Expired => Disposition::Expired,
            },
            reason: archived.reason,
            key: archived.key,
            kind: archived.kind,
            encoding: archived.encoding,
            reference: archived.reference,
            max_read_ct: archived.max_attempts,
        }
    }
}

/// How a message ended.
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
/// producer.enqueue("hello").await?;
/// consumer.bury(&consumer.dequeue().await?[0], "no such address").await?;
/// assert_eq!(admin.list_dead("mail", 10).await?[0].disposition, Disposition::Dead);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Disposition {
    /// Its consumer completed it.
    Completed,
    /// It ran out of attempts, or was buried.
    Dead,
    /// It lived longer than it was allowed to.
    Expired,
}

/// What is in a queue.
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
/// producer.batch_enqueue(&[1, 2]).await?;
/// consumer.dequeue_with_options(1, 30).await?;
/// let metrics: QueueMetrics = admin.get_queue_metrics("mail").await?;
/// assert_eq!((metrics.pending_messages, metrics.locked_messages), (1, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueMetrics {
    /// Its name.
    pub name: String,
    /// Everything that lives: pending, delayed and locked.
    pub total_messages: i64,
    /// Can be dequeued now.
    pub pending_messages: i64,
    /// Visible later.
    pub delayed_messages: i64,
    /// Leased now.
    pub locked_messages: i64,
    /// Finished and remembered, the dead included.
    pub archived_messages: i64,
    /// Dead or expired, waiting to be replayed or forgotten.
    pub dead_messages: i64,
    /// When the oldest pending message was enqueued.
    pub oldest_pending_message: Option<DateTime<Utc>>,
    /// When the newest message was enqueued.
    pub newest_message: Option<DateTime<Utc>>,
}

/// What is in the whole database.
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
/// let stats: SystemStats = admin.get_system_stats().await?;
/// assert_eq!((stats.total_queues, stats.active_workers), (1, 2));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SystemStats {
    /// Queues.
    pub total_queues: i64,
    /// Workers, stopped ones included.
    pub total_workers: i64,
    /// Workers heard of within three heartbeats.
    pub active_workers: i64,
    /// Everything that lives in any queue.
    pub total_messages: i64,
    /// Can be dequeued now.
    pub pending_messages: i64,
    /// Leased now.
    pub locked_messages: i64,
    /// Finished and remembered.
    pub archived_messages: i64,
    /// Those of them that are dead.
    pub dead_messages: i64,
    /// The newest migration.
    pub schema_version: String,
}

/// Whether several processes may use one database at the same time.
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
/// assert_eq!(admin.concurrency_model(), ConcurrencyModel::SingleProcess);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConcurrencyModel {
    /// Made for one process. SQLite stays correct with more, one writing at a time; the Turso engine refuses a second.
    SingleProcess,
    /// Made for any number.
    MultiProcess,
}
