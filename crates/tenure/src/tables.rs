//! The tables one by one: what operators and tests look at. Consumers and producers have better words for their work.

use std::time::Duration;

use serde_json::Value;
use tenure_store::{Answer, Claim, Clear, Due, Fence, Heartbeat, Kind, NewMessage};

use crate::error::{Error, Result};
use crate::payload::{Payload, PayloadValidator};
use crate::store::{Store, count};
use crate::types::{
    ArchivedMessage, QueueInfo, QueueMessage, QueueMetrics, Span, WorkerHealthStats, WorkerInfo, WorkerStatus, time,
};

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
    /// As [`create`](QueueTable::create).
    pub async fn create_with(&self, name: &str, settings: tenure_store::Settings) -> Result<QueueInfo> {
        match self.store.kernel.queue_create(name, settings).await {
            Ok(queue) => Ok(QueueInfo::from(&queue)),
            Err(error) if error.kind() == Kind::AlreadyExists => {
                Err(Error::QueueAlreadyExists { name: name.to_owned() })
            }
            Err(error) => Err(error.into()),
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

    /// Deletes a queue that nobody would miss. How many there were: 1, or 0 when there was none.
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

    /// Removes every live message, leased ones included. How many. The archive and the workers stay.
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn purge(&self, queue_id: i64) -> Result<u64> {
        let everything = Clear { ready: true, leased: true, scheduled: true };
        let mut gone = 0;
        for lane in self.queue(queue_id).await?.lanes {
            gone += self.store.kernel.lane_clear(lane, everything).await?;
        }
        Ok(gone)
    }

    async fn queue(&self, id: i64) -> Result<tenure_store::Queue> {
        self.store.kernel.queue_get_by_id(id).await.map_err(|error| match error.kind() {
            Kind::NotFound => Error::QueueNotFound { name: id.to_string() },
            _ => error.into(),
        })
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

/// The messages that live.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// # let store = tenure::Store::connect(":memory:").await?;
/// # store.install().await?;
/// let queue = store.queues().create("mail").await?.id;
/// let worker = store.workers().register(Some(queue), "host-1", 8080).await?.id;
/// let id = store.messages().insert(queue, worker, &"hello".into(), None).await?;
/// let leased = store.messages().dequeue_atomic(queue, worker, 10, 30, 5).await?;
/// assert_eq!((leased[0].id, store.messages().count_by_worker(worker).await?), (id, 1));
/// assert!(store.messages().release(id, worker).await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MessageTable {
    pub(crate) store: Store,
}

impl MessageTable {
    /// Its name in the database.
    pub fn table_name(&self) -> &'static str {
        "message"
    }

    /// A live message by its id.
    ///
    /// # Errors
    /// `MessageNotFound`.
    pub async fn get(&self, id: i64) -> Result<QueueMessage> {
        let message = self.store.kernel.message_get(id).await?.ok_or(Error::MessageNotFound { id })?;
        let queue_id = self.store.queue_of_lane(message.lane).await?;
        Ok(QueueMessage::stored(queue_id, message))
    }

    /// Stores one message, visible at once or after a delay.
    ///
    /// # Errors
    /// `QueueNotFound`, or what the payload's limits say.
    pub async fn insert(
        &self,
        queue_id: i64,
        worker_id: i64,
        payload: &Value,
        delay_seconds: Option<u32>,
    ) -> Result<i64> {
        Ok(self.put(queue_id, worker_id, std::slice::from_ref(payload), delay_seconds).await?.remove(0))
    }

    /// Stores messages, all or none, and returns their ids in order.
    ///
    /// # Errors
    /// As [`insert`](MessageTable::insert).
    pub async fn insert_batch(&self, queue_id: i64, worker_id: i64, payloads: &[Value]) -> Result<Vec<i64>> {
        self.put(queue_id, worker_id, payloads, None).await
    }

    async fn put(&self, queue: i64, worker: i64, payloads: &[Value], delay: Option<u32>) -> Result<Vec<i64>> {
        let queue = self.store.queues().queue(queue).await?;
        let validator = PayloadValidator::new(self.store.config.validation_config.clone());
        let due = delay.filter(|delay| *delay > 0).map(|delay| Due::In(Duration::from_secs(delay.into())));
        let mut messages = Vec::with_capacity(payloads.len());
        for (index, value) in payloads.iter().enumerate() {
            let payload =
                Payload::json(value).map_err(|source| Error::Serialization { index: index as i64, source })?;
            validator.check(index, &payload)?;
            messages.push(NewMessage { due, producer: Some(worker), ..NewMessage::new(payload.into_bytes()) });
        }
        let enqueued = self.store.kernel.enqueue(&queue, None, messages).await?;
        Ok(enqueued.into_iter().map(|enqueued| enqueued.id).collect())
    }

    /// Removes a message whoever holds it. Whether there was one.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn delete(&self, id: i64) -> Result<bool> {
        match self.store.kernel.message_get(id).await? {
            None => Ok(false),
            Some(message) => Ok(self.store.kernel.message_delete(&[message.id]).await?[0]),
        }
    }

    /// Removes messages that a worker holds. One answer each.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn delete_batch(&self, ids: &[i64], worker_id: i64) -> Result<Vec<bool>> {
        let fences = self.fences(ids, worker_id).await?;
        Ok(done(&self.store.kernel.discard(&fences).await?))
    }

    /// Leases messages to a worker, oldest first. What was delivered `max_read_ct` times or more is buried instead.
    ///
    /// # Errors
    /// `QueueNotFound`, or `ValidationFailed` for a lease of zero.
    pub async fn dequeue_atomic(
        &self,
        queue_id: i64,
        worker_id: i64,
        limit: usize,
        vt_seconds: u32,
        max_read_ct: u32,
    ) -> Result<Vec<QueueMessage>> {
        let queue = self.store.queues().queue(queue_id).await?;
        let lease = Span::from(vt_seconds).positive("the lock time")?;
        self.store.bury_exhausted(&queue, i32::try_from(max_read_ct).unwrap_or(i32::MAX)).await?;
        let claim = Claim { lease: Some(lease), worker: Some(worker_id), ..Claim::from_queue(&queue, limit) };
        let messages = self.store.kernel.claim(claim).await?;
        Ok(messages.into_iter().map(|message| QueueMessage::leased(queue_id, message)).collect())
    }

    /// Extends a lease from its end, or from now if that has passed. Whether the worker held it.
    ///
    /// # Errors
    /// `ValidationFailed` for zero.
    pub async fn extend_visibility(&self, id: i64, worker_id: i64, additional_seconds: u32) -> Result<bool> {
        let extra = Span::from(additional_seconds).positive("the extension")?;
        let fences = self.fences(&[id], worker_id).await?;
        Ok(self.store.kernel.extend(&fences, extra).await?[0].is_some())
    }

    /// Gives a message back, visible at once; its delivery stays counted. Whether the worker held it.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn release(&self, id: i64, worker_id: i64) -> Result<bool> {
        Ok(self.release_batch(&[id], worker_id).await?[0])
    }

    /// The same for many. One answer each.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn release_batch(&self, ids: &[i64], worker_id: i64) -> Result<Vec<bool>> {
        let fences = self.fences(ids, worker_id).await?;
        Ok(done(&self.store.kernel.release(&fences).await?))
    }

    /// How many messages a worker holds.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn count_by_worker(&self, worker_id: i64) -> Result<i64> {
        Ok(count(self.store.kernel.worker_held(worker_id).await?))
    }

    /// A message's id is its identity; a lease is held at its position, which moves when it was scheduled.
    async fn fences(&self, ids: &[i64], worker: i64) -> Result<Vec<Fence>> {
        let mut fences = Vec::with_capacity(ids.len());
        for id in ids {
            let position = self.store.kernel.message_get(*id).await?.map_or(*id, |message| message.id);
            fences.push(Fence::held_by(position, worker));
        }
        Ok(fences)
    }
}

pub(crate) fn done(answers: &[Answer]) -> Vec<bool> {
    answers.iter().map(|answer| *answer == Answer::Done).collect()
}

/// The workers.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// # let store = tenure::Store::connect(":memory:").await?;
/// # store.install().await?;
/// let worker = store.workers().register(None, "host-1", 8080).await?;
/// store.workers().heartbeat(worker.id).await?;
/// assert!(store.workers().is_healthy(worker.id, 30).await?);
/// store.workers().shutdown(worker.id).await?;
/// assert!(matches!(store.workers().heartbeat(worker.id).await, Err(tenure::Error::WorkerStopped { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct WorkerTable {
    pub(crate) store: Store,
}

impl WorkerTable {
    /// Its name in the database.
    pub fn table_name(&self) -> &'static str {
        "worker"
    }

    /// Registers a worker. An earlier incarnation in the same place is stopped, and its leases are free.
    ///
    /// # Errors
    /// `ValidationFailed` for a hostname that cannot be.
    pub async fn register(&self, queue_id: Option<i64>, hostname: &str, port: i32) -> Result<WorkerInfo> {
        let queue = queue_id.map_or_else(|| "-".to_owned(), |queue| queue.to_string());
        self.register_as("worker", &queue, queue_id, hostname, port).await
    }

    pub(crate) async fn register_as(
        &self,
        role: &str,
        queue: &str,
        queue_id: Option<i64>,
        hostname: &str,
        port: i32,
    ) -> Result<WorkerInfo> {
        if hostname.trim().is_empty() {
            return Err(Error::invalid("the hostname is empty: say where this worker runs"));
        }
        let name = WorkerInfo::name(role, queue, hostname, port);
        Ok(self.store.kernel.worker_register(&name, queue_id).await?.into())
    }

    /// A worker by its number.
    ///
    /// # Errors
    /// `WorkerNotFound`.
    pub async fn get(&self, worker_id: i64) -> Result<WorkerInfo> {
        Ok(self.store.kernel.worker_get(worker_id).await.map_err(|error| named(worker_id, error))?.into())
    }

    /// What a worker is doing.
    ///
    /// # Errors
    /// `WorkerNotFound`.
    pub async fn get_status(&self, worker_id: i64) -> Result<WorkerStatus> {
        Ok(self.get(worker_id).await?.status)
    }

    /// Workers of one queue, or all.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn list(&self, queue_id: Option<i64>) -> Result<Vec<WorkerInfo>> {
        Ok(self.store.kernel.worker_list(queue_id, None).await?.into_iter().map(WorkerInfo::from).collect())
    }

    /// Says that a worker lives.
    ///
    /// # Errors
    /// `WorkerStopped` when it was stopped: its leases are no longer its own. `WorkerNotFound`.
    pub async fn heartbeat(&self, worker_id: i64) -> Result<()> {
        match self.store.kernel.worker_heartbeat(&[worker_id]).await?[0] {
            Heartbeat::Alive => Ok(()),
            Heartbeat::Fenced => Err(Error::WorkerStopped { id: worker_id }),
            Heartbeat::Unknown => Err(Error::WorkerNotFound { id: worker_id }),
        }
    }

    /// Whether a worker is not stopped and was heard of within `max_age`; never with an age of zero.
    ///
    /// # Errors
    /// `WorkerNotFound`, or `ValidationFailed` for a negative age.
    pub async fn is_healthy(&self, worker_id: i64, max_age: impl Into<Span>) -> Result<bool> {
        let max_age = max_age.into().get("the age")?;
        let worker = self.get(worker_id).await?;
        let silent = self.store.kernel.worker_list(worker.queue_id, Some(max_age)).await?;
        Ok(worker.status != WorkerStatus::Stopped && silent.iter().all(|stale| stale.id != worker_id))
    }

    /// Ready to suspended: it is handed nothing until it is resumed.
    ///
    /// # Errors
    /// `InvalidStateTransition`, `WorkerNotFound`.
    pub async fn suspend(&self, worker_id: i64) -> Result<()> {
        let result = self.store.kernel.worker_suspend(worker_id).await;
        self.changed(worker_id, "suspended", result).await
    }

    /// Suspended to ready.
    ///
    /// # Errors
    /// `InvalidStateTransition`, `WorkerNotFound`.
    pub async fn resume(&self, worker_id: i64) -> Result<()> {
        let result = self.store.kernel.worker_resume(worker_id).await;
        self.changed(worker_id, "ready", result).await
    }

    /// Anything but stopped to stopped; its leases are free at once.
    ///
    /// # Errors
    /// `InvalidStateTransition`, `WorkerNotFound`.
    pub async fn shutdown(&self, worker_id: i64) -> Result<()> {
        let result = self.store.kernel.worker_shutdown(worker_id).await;
        self.changed(worker_id, "stopped", result).await
    }

    async fn changed(&self, id: i64, to: &str, result: tenure_store::Result<tenure_store::Worker>) -> Result<()> {
        match result {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == Kind::InvalidState => {
                let from = format!("{:?}", self.get_status(id).await?).to_lowercase();
                Err(Error::InvalidStateTransition { from, to: to.to_owned(), reason: error.to_string() })
            }
            Err(error) => Err(named(id, error)),
        }
    }

    /// How all workers are; one that is not stopped and was not heard of within `timeout` is stale.
    ///
    /// # Errors
    /// `ValidationFailed` for a negative time-out.
    pub async fn health_stats(&self, timeout: impl Into<Span>) -> Result<WorkerHealthStats> {
        let timeout = timeout.into().get("the time-out")?;
        let mut stats = WorkerHealthStats::default();
        for worker in self.store.kernel.worker_list(None, None).await? {
            stats.total_workers += 1;
            match worker.status {
                WorkerStatus::Ready => stats.ready_workers += 1,
                WorkerStatus::Suspended => stats.suspended_workers += 1,
                WorkerStatus::Stopped => stats.stopped_workers += 1,
            }
        }
        stats.stale_workers = self.store.kernel.worker_list(None, Some(timeout)).await?.len() as i64;
        Ok(stats)
    }
}

fn named(id: i64, error: tenure_store::Error) -> Error {
    match error.kind() {
        Kind::NotFound => Error::WorkerNotFound { id },
        _ => error.into(),
    }
}

/// The messages that are finished and remembered.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// # let store = tenure::Store::connect(":memory:").await?;
/// # store.install().await?;
/// # let queue = store.queues().create("mail").await?.id;
/// # let worker = store.workers().register(Some(queue), "host-1", 8080).await?.id;
/// # let id = store.messages().insert(queue, worker, &"hello".into(), None).await?;
/// # store.messages().dequeue_atomic(queue, worker, 10, 30, 5).await?;
/// let archived = store.archive().archive_message(id, worker).await?.expect("this worker holds it");
/// assert_eq!(store.archive().list(10, 0).await?, [archived]);
/// assert_eq!(store.archive().count_dlq(0).await?, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ArchiveTable {
    pub(crate) store: Store,
}

impl ArchiveTable {
    /// Its name in the database.
    pub fn table_name(&self) -> &'static str {
        "archive"
    }

    /// A finished message by its id.
    ///
    /// # Errors
    /// `MessageNotFound`.
    pub async fn get(&self, id: i64) -> Result<ArchivedMessage> {
        let archived = self.store.kernel.archive_get(id).await?;
        archived.map(ArchivedMessage::from).ok_or(Error::MessageNotFound { id })
    }

    /// Finished messages, newest first.
    ///
    /// # Errors
    /// `ValidationFailed` for a negative limit or offset.
    pub async fn list(&self, limit: i64, offset: i64) -> Result<Vec<ArchivedMessage>> {
        self.page(Filter::default(), limit, offset).await
    }

    /// How many there are.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn count(&self) -> Result<i64> {
        Ok(count(self.store.kernel.census(Duration::ZERO).await?.archived))
    }

    /// Completes a message and keeps it. None when it is not there, or not held by this worker.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn archive_message(&self, msg_id: i64, worker_id: i64) -> Result<Option<ArchivedMessage>> {
        let fences = self.store.messages().fences(&[msg_id], worker_id).await?;
        Ok(self.store.kernel.archive(&fences).await?.remove(0).map(ArchivedMessage::from))
    }

    /// The same for many. Which of them were archived.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn archive_batch(&self, msg_ids: &[i64], worker_id: i64) -> Result<Vec<i64>> {
        let fences = self.store.messages().fences(msg_ids, worker_id).await?;
        let archived = self.store.kernel.archive(&fences).await?;
        Ok(archived.into_iter().flatten().map(|archived| archived.id).collect())
    }

    /// Dead messages that were delivered at least `max_attempts` times, newest first; 0: all of them.
    ///
    /// # Errors
    /// `ValidationFailed` for a negative limit or offset.
    pub async fn list_dlq(&self, max_attempts: i32, limit: i64, offset: i64) -> Result<Vec<ArchivedMessage>> {
        self.page(Filter { dead: true, attempts: max_attempts.into(), worker: None }, limit, offset).await
    }

    /// How many those are.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn count_dlq(&self, max_attempts: i32) -> Result<i64> {
        let filter = Filter { dead: true, attempts: max_attempts.into(), worker: None };
        Ok(count(self.store.kernel.archive_tally(true, filter.attempts, None).await?))
    }

    /// Messages that a worker held last, newest first.
    ///
    /// # Errors
    /// `ValidationFailed` for a negative limit or offset.
    pub async fn list_by_worker(&self, worker_id: i64, limit: i64, offset: i64) -> Result<Vec<ArchivedMessage>> {
        self.page(Filter { worker: Some(worker_id), ..Filter::default() }, limit, offset).await
    }

    async fn page(&self, filter: Filter, limit: i64, offset: i64) -> Result<Vec<ArchivedMessage>> {
        for (what, number) in [("limit", limit), ("offset", offset)] {
            if number < 0 {
                return Err(Error::invalid(format!("the {what} is {number}: it cannot be negative")));
            }
        }
        let page = self.store.kernel.archive_page(filter.dead, filter.attempts, filter.worker, limit, offset);
        Ok(page.await?.into_iter().map(ArchivedMessage::from).collect())
    }
}

#[derive(Clone, Copy, Default)]
struct Filter {
    dead: bool,
    attempts: i64,
    worker: Option<i64>,
}
