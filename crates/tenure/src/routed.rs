//! The routed queue: messages with the same routing key are delivered together, in order, to one holder at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenure_store::{Answer, Due, NewMessage};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::observe::Observer;
use crate::store::Store;
use crate::types::{QueueMessage, Span};

/// Queues by name, with routing keys: for work that must not be done twice at once for the same thing.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// use tenure::{Admin, MessageQueue, Store};
/// let store = Store::connect(":memory:").await?;
/// store.install().await?;
/// Admin::on(&store).create_queue("orders").await?;
/// let queue = MessageQueue::on(&store);
/// queue.enqueue("orders", "order-1", "created", None).await?;
/// queue.enqueue("orders", "order-2", "created", None).await?;
/// queue.enqueue("orders", "order-1", "paid", None).await?;
///
/// let batch = queue.dequeue_batch("orders").await?.expect("order-1 is free");
/// assert_eq!((batch.routing_key.as_str(), batch.messages.len()), ("order-1", 2));
/// // No other holder gets order-1 until this is acknowledged, abandoned, or its lease runs out.
/// assert_eq!(queue.dequeue_batch("orders").await?.expect("order-2 is free").routing_key, "order-2");
/// queue.ack(&batch.lock_token).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MessageQueue {
    store: Store,
    /// Queues looked up within the last second, so that a verb is one act and not two.
    queues: Arc<Mutex<HashMap<String, Known>>>,
}

/// A queue, and when it was looked up.
type Known = (Instant, Arc<tenure_store::Queue>);

/// How long a look-up of a queue is believed.
const BELIEVED: Duration = Duration::from_secs(1);

/// The first messages of one routing key that were ready, under one lease that covers the whole key.
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
/// let queue = MessageQueue::on(&store);
/// queue.enqueue("mail", "ada", "hello", None).await?;
/// let batch: MessageBatch = queue.dequeue_batch("mail").await?.expect("the key is free");
/// assert_eq!((batch.routing_key.as_str(), batch.messages.len()), ("ada", 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageBatch {
    /// The key.
    pub routing_key: String,
    /// Its messages, in order.
    pub messages: Vec<QueueMessage>,
    /// What proves the lease.
    pub lock_token: LockToken,
}

/// What proves that a routing key is held.
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
/// let queue = MessageQueue::on(&store);
/// queue.enqueue("mail", "ada", "hello", None).await?;
/// let token: LockToken = queue.dequeue_batch("mail").await?.expect("the key is free").lock_token;
/// queue.ack(&token).await?;
/// assert!(matches!(queue.ack(&token).await, Err(Error::LeaseLost { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockToken(i64);

impl MessageQueue {
    /// Connects.
    ///
    /// # Errors
    /// Why the database cannot be used.
    pub async fn new(config: &Config) -> Result<Self> {
        Ok(Self::on(&Store::connect_with_config(config).await?))
    }

    /// Over a store that is already connected.
    pub fn on(store: &Store) -> Self {
        MessageQueue { store: store.clone(), queues: Arc::default() }
    }

    /// Enqueues bytes under a routing key, visible at once or after a delay. The message's id.
    ///
    /// # Errors
    /// `QueueNotFound`, or `ValidationFailed` for a key or a delay that cannot be.
    pub async fn enqueue(
        &self,
        queue: &str,
        routing_key: &str,
        message: impl Into<Bytes>,
        delay: Option<Span>,
    ) -> Result<i64> {
        let observer = self.observer(queue);
        let queue = self.queue(queue).await?;
        let delay = delay.map(|delay| delay.get("the delay")).transpose()?.filter(|delay| !delay.is_zero());
        let message =
            NewMessage { key: Some(routing_key.to_owned()), due: delay.map(Due::In), ..NewMessage::new(message) };
        let act = async {
            let enqueued = self.store.kernel.enqueue(&queue, None, vec![message]).await;
            Ok(enqueued.map_err(|error| Error::of_queue(&queue.name, error))?[0].id)
        };
        let id = observer.watch("enqueue", act).await?;
        observer.count("enqueued", 1);
        Ok(id)
    }

    /// Leases the first free routing key for the queue's lease time, and returns its ready messages: at most 256, and about
    /// 1 MiB of payload; the others come with the next batch of the key. None when no key is free.
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn dequeue_batch(&self, queue: &str) -> Result<Option<MessageBatch>> {
        self.dequeue_batch_within(queue, Duration::ZERO).await
    }

    /// The same, but waits for a key to be free: none only when the wait is over.
    ///
    /// # Errors
    /// `QueueNotFound`.
    pub async fn dequeue_batch_within(&self, queue: &str, wait: Duration) -> Result<Option<MessageBatch>> {
        let observer = self.observer(queue);
        let queue = self.queue(queue).await?;
        let kernel = &self.store.kernel;
        let claim = |queue: tenure_store::Queue, wait| async move {
            Ok((queue.id, kernel.claim_key(&queue.lanes, None, None, wait).await?))
        };
        let act =
            async { self.store.follow(&queue, wait, claim).await.map_err(|error| Error::of_queue(&queue.name, error)) };
        let (queue_id, batch) = observer.watch("dequeue_batch", act).await?;
        observer.count("delivered", batch.as_ref().map_or(0, |batch| batch.messages.len()));
        Ok(batch.map(|batch| MessageBatch {
            routing_key: batch.key,
            lock_token: LockToken(batch.token),
            messages: batch.messages.into_iter().map(|m| QueueMessage::leased(queue_id, m)).collect(),
        }))
    }

    /// Completes every message of the batch and lets the key go. Messages that arrived meanwhile are not touched.
    ///
    /// # Errors
    /// `LeaseLost` when the lease had run out and another holder took the key.
    pub async fn ack(&self, lock_token: &LockToken) -> Result<()> {
        let act = async { Ok(self.store.kernel.key_complete(lock_token.0).await?) };
        held(lock_token, self.observer("").watch("ack", act).await?)
    }

    /// Gives every message of the batch back, in its place. With a delay no holder gets the key until it has passed.
    ///
    /// # Errors
    /// `LeaseLost` when the lease had run out and another holder took the key; `ValidationFailed` for a negative delay.
    pub async fn abandon(&self, lock_token: &LockToken, delay: Option<Span>) -> Result<()> {
        let delay = delay.map_or(Ok(Duration::ZERO), |delay| delay.get("the delay"))?;
        let act = async { Ok(self.store.kernel.key_release(lock_token.0, delay, None).await?) };
        held(lock_token, self.observer("").watch("abandon", act).await?)
    }

    /// Extends the lease of the key. Whether it was still held.
    ///
    /// # Errors
    /// `ValidationFailed` for an extension that is not positive.
    pub async fn extend(&self, lock_token: &LockToken, additional: impl Into<Span>) -> Result<bool> {
        let extra = additional.into().positive("the extension")?;
        let act = async { Ok(self.store.kernel.key_extend(&[lock_token.0], extra).await?[0].is_some()) };
        self.observer("").watch("extend", act).await
    }

    async fn queue(&self, name: &str) -> Result<Arc<tenure_store::Queue>> {
        let known = || self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, queue)) = known().get(name)
            && at.elapsed() < BELIEVED
        {
            return Ok(queue.clone());
        }
        let queue = Arc::new(self.store.queue(name).await?);
        known().insert(name.to_owned(), (Instant::now(), queue.clone()));
        Ok(queue)
    }

    /// A token knows its key, not its queue: its verbs are counted without one.
    fn observer(&self, queue: &str) -> Observer {
        Observer { backend: self.store.backend_name(), queue: queue.to_owned() }
    }
}

fn held(token: &LockToken, answer: Answer) -> Result<()> {
    match answer {
        Answer::Done => Ok(()),
        _ => Err(Error::LeaseLost { id: token.0 }),
    }
}
