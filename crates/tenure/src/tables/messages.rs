//! The messages that live.

use std::time::Duration;

use serde_json::Value;
use tenure_store::{Answer, Claim, Due, Fence, Kind, NewMessage};

use crate::error::{Error, Result};
use crate::payload::{Payload, PayloadValidator};
use crate::store::{Store, count};
use crate::types::{QueueMessage, Span};

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
        let id = queue;
        let queue = self.store.queues().queue(id).await?;
        let validator = PayloadValidator::new(self.store.config.validation_config.clone());
        let due = delay.filter(|delay| *delay > 0).map(|delay| Due::In(Duration::from_secs(delay.into())));
        let mut messages = Vec::with_capacity(payloads.len());
        for (index, value) in payloads.iter().enumerate() {
            let payload =
                Payload::json(value).map_err(|source| Error::Serialization { index: index as i64, source })?;
            validator.check(index, &payload)?;
            messages.push(NewMessage { due, producer: Some(worker), ..NewMessage::new(payload.into_bytes()) });
        }
        let enqueued = self.store.kernel.enqueue(&queue, None, messages).await;
        let enqueued = enqueued.map_err(|error| Error::of_queue(&id.to_string(), error))?;
        Ok(enqueued.into_iter().map(|enqueued| enqueued.id).collect())
    }

    /// Removes a message, also under a lease. Whether there was one.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn delete(&self, id: i64) -> Result<bool> {
        match self.store.kernel.message_get(id).await? {
            None => Ok(false),
            Some(message) => Ok(self.store.kernel.message_delete(None, &[message.id]).await?[0]),
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
    /// `QueueNotFound`, `ValidationFailed` for a lease of zero, or `WorkerStopped` when the worker was stopped or purged.
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
        let claim = Claim { lease: Some(lease), worker: Some(worker_id), ..Claim::from_queue(&queue, limit) };
        let messages = self.store.kernel.claim(claim).await.map_err(|error| match error.kind() {
            Kind::NotFound => Error::of_queue(&queue_id.to_string(), error),
            _ => Error::of_worker(worker_id, error),
        })?;
        let (dead, alive): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|message| message.attempts > i64::from(max_read_ct));
        if !dead.is_empty() {
            let fences: Vec<Fence> = dead.iter().map(tenure_store::Message::fence).collect();
            let reason = format!("not completed in {max_read_ct} attempts");
            self.store.kernel.bury_unseen(&fences, &reason).await?;
        }
        Ok(alive.into_iter().map(|message| QueueMessage::leased(queue_id, message)).collect())
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
    pub(super) async fn fences(&self, ids: &[i64], worker: i64) -> Result<Vec<Fence>> {
        let positions = self.store.kernel.message_positions(ids).await?;
        let fence = |(id, position): (&i64, Option<i64>)| Fence::held_by(position.unwrap_or(*id), worker);
        Ok(ids.iter().zip(positions).map(fence).collect())
    }
}

pub(crate) fn done(answers: &[Answer]) -> Vec<bool> {
    answers.iter().map(|answer| *answer == Answer::Done).collect()
}
