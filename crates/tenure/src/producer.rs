//! Enqueueing: now, later, at a time; one message or many; in a transaction of the caller's own.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::Serialize;
use tenure_store::{Due, NewMessage};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::observe::Observer;
use crate::payload::{Payload, PayloadValidator};
use crate::store::Store;
use crate::types::{QueueMessage, Span, WorkerStatus};
use crate::worker::Worker;

/// What can be said about a message besides its payload.
///
/// ```
/// use tenure::EnqueueOptions;
/// let options = EnqueueOptions::default().key("customer-7").dedupe_key("order-4711").delay(30).max_attempts(3);
/// assert_eq!(options.dedupe_key.as_deref(), Some("order-4711"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct EnqueueOptions {
    /// Messages of one key are delivered together, in order, to one consumer at a time.
    pub key: Option<String>,
    /// A second enqueue with the same dedupe key stores nothing and answers with the first message, marked as
    /// [`duplicate`](QueueMessage::duplicate).
    pub dedupe_key: Option<String>,
    /// Visible only after this long; zero: at once.
    pub delay: Option<Span>,
    /// Visible only from then on.
    pub at: Option<DateTime<Utc>>,
    /// Dies unless it is completed within this time of being visible.
    pub expire: Option<Span>,
    /// How often it may be delivered; none: as the queue says.
    pub max_attempts: Option<u32>,
    /// What it is for.
    pub kind: Option<String>,
    /// How the payload is encoded, in the producer's words. None is read or checked.
    pub encoding: Option<String>,
    /// Anything else that the consumer should see.
    pub reference: Option<String>,
}

impl EnqueueOptions {
    /// Sets the key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the delay.
    #[must_use]
    pub fn delay(mut self, delay: impl Into<Span>) -> Self {
        self.delay = Some(delay.into());
        self
    }

    /// Sets the dedupe key.
    #[must_use]
    pub fn dedupe_key(mut self, key: impl Into<String>) -> Self {
        self.dedupe_key = Some(key.into());
        self
    }

    /// Sets the time from which on it is visible.
    #[must_use]
    pub fn at(mut self, at: DateTime<Utc>) -> Self {
        self.at = Some(at);
        self
    }

    /// Sets how long it may live once it is visible.
    #[must_use]
    pub fn expire(mut self, expire: impl Into<Span>) -> Self {
        self.expire = Some(expire.into());
        self
    }

    /// Sets how often it may be delivered.
    #[must_use]
    pub fn max_attempts(mut self, limit: u32) -> Self {
        self.max_attempts = Some(limit);
        self
    }

    /// Sets what it is for.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Sets how the payload is encoded.
    #[must_use]
    pub fn encoding(mut self, encoding: impl Into<String>) -> Self {
        self.encoding = Some(encoding.into());
        self
    }

    /// Sets anything else that the consumer should see.
    #[must_use]
    pub fn reference(mut self, reference: impl Into<String>) -> Self {
        self.reference = Some(reference.into());
        self
    }

    fn message(&self, payload: Payload, producer: i64) -> Result<NewMessage> {
        let delay = self.delay.map(|delay| delay.get("the delay")).transpose()?;
        let due = match (self.at, delay) {
            (Some(_), Some(_)) => return Err(Error::invalid("both a delay and a time are given: choose one")),
            (Some(at), None) => Some(Due::At(at.timestamp_micros())),
            (None, Some(delay)) if !delay.is_zero() => Some(Due::In(delay)),
            (None, _) => None,
        };
        Ok(NewMessage {
            payload: payload.into_bytes(),
            key: self.key.clone(),
            dedupe: self.dedupe_key.clone(),
            due,
            expire: self.expire.map(|expire| expire.positive("the expiry")).transpose()?,
            max_attempts: self.max_attempts,
            kind: self.kind.clone(),
            encoding: self.encoding.clone(),
            reference: self.reference.clone(),
            producer: Some(producer),
        })
    }
}

/// Puts messages into one queue.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// use tenure::{Admin, Config, Producer};
/// # let file = tempfile::NamedTempFile::new().unwrap();
/// let config = Config::from_dsn(file.path().to_str().unwrap());
/// let admin = Admin::new(&config).await?;
/// admin.install().await?;
/// admin.create_queue("mail").await?;
///
/// let producer = Producer::new(&config, "mail", "host-1", 8080).await?;
/// let message = producer.enqueue(&serde_json::json!({"to": "ada@example.com"})).await?;
/// let later = producer.enqueue_delayed("a reminder", 3600).await?;
/// assert!(later.vt > message.vt);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Producer {
    store: Store,
    queue: tenure_store::Queue,
    worker: Worker,
    validator: PayloadValidator,
    observer: Observer,
}

impl Producer {
    /// Connects, and registers as a worker in this place. `port` is any number that tells producers of one host apart.
    ///
    /// # Errors
    /// `QueueNotFound`, or why the database cannot be used.
    pub async fn new(config: &Config, queue_name: &str, hostname: &str, port: i32) -> Result<Self> {
        Self::on(&Store::connect_with_config(config).await?, queue_name, hostname, port).await
    }

    /// The same over a store that is already connected.
    ///
    /// # Errors
    /// As [`new`](Producer::new).
    pub async fn on(store: &Store, queue_name: &str, hostname: &str, port: i32) -> Result<Self> {
        let queue = store.queue(queue_name).await?;
        let info = store.workers().register_as("producer", queue_name, Some(queue.id), hostname, port).await?;
        Ok(Producer {
            worker: Worker::start(store, &info),
            validator: PayloadValidator::new(store.config.validation_config.clone()),
            observer: Observer { backend: store.backend_name(), queue: queue.name.clone() },
            store: store.clone(),
            queue,
        })
    }

    /// Enqueues a payload as JSON, visible at once.
    ///
    /// # Errors
    /// What the payload's limits say; `WorkerStopped` after [`shutdown`](Producer::shutdown).
    pub async fn enqueue<T: Serialize + ?Sized>(&self, payload: &T) -> Result<QueueMessage> {
        self.enqueue_with_options(payload, &EnqueueOptions::default()).await
    }

    /// Enqueues a payload that is visible after a delay; zero: at once.
    ///
    /// # Errors
    /// As [`enqueue`](Producer::enqueue), and `ValidationFailed` for a negative delay.
    pub async fn enqueue_delayed<T: Serialize + ?Sized>(
        &self,
        payload: &T,
        delay: impl Into<Span>,
    ) -> Result<QueueMessage> {
        self.enqueue_with_options(payload, &EnqueueOptions::default().delay(delay)).await
    }

    /// Enqueues a payload that is visible from then on; a time that has passed means at once.
    ///
    /// # Errors
    /// As [`enqueue`](Producer::enqueue).
    pub async fn enqueue_at<T: Serialize + ?Sized>(&self, payload: &T, at: DateTime<Utc>) -> Result<QueueMessage> {
        self.enqueue_with_options(payload, &EnqueueOptions::default().at(at)).await
    }

    /// Enqueues a payload with options.
    ///
    /// # Errors
    /// As [`enqueue`](Producer::enqueue), and `ValidationFailed` for options that cannot be right.
    pub async fn enqueue_with_options<T: Serialize + ?Sized>(
        &self,
        payload: &T,
        options: &EnqueueOptions,
    ) -> Result<QueueMessage> {
        let message = self.json(0, payload, options)?;
        Ok(self.put("enqueue", vec![message]).await?.remove(0))
    }

    /// Enqueues bytes as they are, with options.
    ///
    /// # Errors
    /// As [`enqueue_with_options`](Producer::enqueue_with_options).
    pub async fn enqueue_bytes(&self, payload: impl Into<Bytes>, options: &EnqueueOptions) -> Result<QueueMessage> {
        let message = self.checked(0, Payload::bytes(payload), options)?;
        Ok(self.put("enqueue", vec![message]).await?.remove(0))
    }

    /// Enqueues many payloads as JSON, all or none, in one statement; the answers are in their order.
    ///
    /// # Errors
    /// As [`enqueue`](Producer::enqueue); the error names the index, and nothing was stored.
    pub async fn batch_enqueue<T: Serialize>(&self, payloads: &[T]) -> Result<Vec<QueueMessage>> {
        self.batch_enqueue_with_options(payloads, &EnqueueOptions::default()).await
    }

    /// The same with options that all of them share.
    ///
    /// # Errors
    /// As [`batch_enqueue`](Producer::batch_enqueue).
    pub async fn batch_enqueue_with_options<T: Serialize>(
        &self,
        payloads: &[T],
        options: &EnqueueOptions,
    ) -> Result<Vec<QueueMessage>> {
        self.put("batch_enqueue", self.batch(payloads, options)?).await
    }

    /// Enqueues many payloads as JSON, each with options of its own, all or none; the answers are in their order. However many
    /// they are, they are one act: one statement, or one short transaction if there are dedupe keys or delays among them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> tenure::Result<()> {
    /// # use tenure::*;
    /// # let store = Store::connect(":memory:").await?;
    /// # store.install().await?;
    /// # Admin::on(&store).create_queue("mail").await?;
    /// # let producer = Producer::on(&store, "mail", "host-1", 1).await?;
    /// let options = EnqueueOptions::default();
    /// let sent = producer
    ///     .batch_enqueue_each(&[
    ///         ("welcome", options.clone().key("ada").dedupe_key("welcome-ada")),
    ///         ("a reminder", options.clone().key("ada").delay(3600)),
    ///         ("welcome", options.key("bob").dedupe_key("welcome-bob")),
    ///     ])
    ///     .await?;
    /// assert_eq!((sent[0].key.as_deref(), sent[2].key.as_deref()), (Some("ada"), Some("bob")));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`batch_enqueue`](Producer::batch_enqueue), and `ValidationFailed` for options that cannot be right; the error names
    /// the index, and nothing was stored.
    pub async fn batch_enqueue_each<T: Serialize>(
        &self,
        messages: &[(T, EnqueueOptions)],
    ) -> Result<Vec<QueueMessage>> {
        self.put("batch_enqueue", self.each(messages)?).await
    }

    /// Enqueues inside a transaction of the caller's on the same PostgreSQL database. Rollback leaves nothing; consumers
    /// hear of the message when it commits.
    ///
    /// # Errors
    /// As [`batch_enqueue`](Producer::batch_enqueue); `QueueNotFound` also once after the queue was deleted and created anew:
    /// roll back and repeat the transaction. Above READ COMMITTED also `Store` with a serialization failure, which is
    /// [retryable](Error::is_retryable), when the queue was deleted after the transaction's snapshot was taken. `UnsupportedDsn`
    /// when this producer's store is not PostgreSQL.
    pub async fn enqueue_in_postgres<T: Serialize>(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        payloads: &[T],
        options: &EnqueueOptions,
    ) -> Result<Vec<QueueMessage>> {
        self.put_in_postgres(transaction, self.batch(payloads, options)?).await
    }

    /// The same with options of its own for each payload: see [`batch_enqueue_each`](Producer::batch_enqueue_each).
    ///
    /// # Errors
    /// As [`batch_enqueue_each`](Producer::batch_enqueue_each); `UnsupportedDsn` when this producer's store is not PostgreSQL.
    pub async fn enqueue_each_in_postgres<T: Serialize>(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        messages: &[(T, EnqueueOptions)],
    ) -> Result<Vec<QueueMessage>> {
        self.put_in_postgres(transaction, self.each(messages)?).await
    }

    async fn put_in_postgres(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<QueueMessage>> {
        let act = async {
            let enqueued = self.store.kernel.enqueue_in_postgres(transaction, &self.queue, messages.clone()).await;
            enqueued.map_err(|error| Error::of_queue(&self.queue.name, error))
        };
        let enqueued = self.observer.watch("enqueue_in_transaction", act).await?;
        Ok(self.answers(messages, enqueued))
    }

    /// The same in a transaction on the same SQLite file. It does not wait: call it where the transaction lives.
    ///
    /// # Errors
    /// As [`enqueue_in_postgres`](Producer::enqueue_in_postgres); `UnsupportedDsn` when this producer's store is not a SQLite file.
    #[cfg(feature = "sqlite")]
    pub fn enqueue_in_sqlite<T: Serialize>(
        &self,
        transaction: &rusqlite::Transaction<'_>,
        payloads: &[T],
        options: &EnqueueOptions,
    ) -> Result<Vec<QueueMessage>> {
        self.put_in_sqlite(transaction, self.batch(payloads, options)?)
    }

    /// The same with options of its own for each payload: see [`batch_enqueue_each`](Producer::batch_enqueue_each).
    ///
    /// # Errors
    /// As [`batch_enqueue_each`](Producer::batch_enqueue_each); `UnsupportedDsn` when this producer's store is not a SQLite
    /// file.
    #[cfg(feature = "sqlite")]
    pub fn enqueue_each_in_sqlite<T: Serialize>(
        &self,
        transaction: &rusqlite::Transaction<'_>,
        messages: &[(T, EnqueueOptions)],
    ) -> Result<Vec<QueueMessage>> {
        self.put_in_sqlite(transaction, self.each(messages)?)
    }

    #[cfg(feature = "sqlite")]
    fn put_in_sqlite(
        &self,
        transaction: &rusqlite::Transaction<'_>,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<QueueMessage>> {
        let enqueued = self.store.kernel.enqueue_in_sqlite(transaction, &self.queue, messages.clone());
        let enqueued = enqueued.map_err(|error| Error::of_queue(&self.queue.name, error))?;
        Ok(self.answers(messages, enqueued))
    }

    /// Puts a dead message of this queue back: ready at once, with fresh attempts and the same id. None when there is no
    /// dead message of this queue with this id.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn replay_from_dlq(&self, archived_id: i64) -> Result<Option<QueueMessage>> {
        let act = self.store.replay(Some(self.queue_id()), std::slice::from_ref(&archived_id));
        Ok(self.observer.watch("replay", act).await?.remove(0))
    }

    /// [`replay_from_dlq`](Producer::replay_from_dlq) under its other name.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn replay_dlq(&self, archived_id: i64) -> Result<Option<QueueMessage>> {
        self.replay_from_dlq(archived_id).await
    }

    /// The number of this incarnation.
    pub fn worker_id(&self) -> i64 {
        self.worker.id
    }

    /// The queue.
    pub fn queue_name(&self) -> &str {
        &self.queue.name
    }

    /// What this producer's worker is doing.
    ///
    /// # Errors
    /// `WorkerNotFound` when it was purged.
    pub async fn status(&self) -> Result<WorkerStatus> {
        self.store.workers().get_status(self.worker.id).await
    }

    /// Stops this producer.
    ///
    /// # Errors
    /// `InvalidStateTransition` when it is stopped already.
    pub async fn shutdown(&self) -> Result<()> {
        self.worker.shutdown().await
    }

    fn json<T: Serialize + ?Sized>(&self, index: usize, payload: &T, options: &EnqueueOptions) -> Result<NewMessage> {
        let payload = Payload::json(payload).map_err(|source| Error::Serialization { index: index as i64, source })?;
        self.checked(index, payload, options)
    }

    fn checked(&self, index: usize, payload: Payload, options: &EnqueueOptions) -> Result<NewMessage> {
        self.validator.check(index, &payload)?;
        options.message(payload, self.worker.id)
    }

    #[cfg(feature = "sqlx")]
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The queue that has the name now, as far as this process knows.
    fn queue_id(&self) -> i64 {
        self.store.kernel.successor(&self.queue).map_or(self.queue.id, |queue| queue.id)
    }

    #[cfg(feature = "sqlx")]
    pub(crate) fn observer(&self) -> &Observer {
        &self.observer
    }

    pub(crate) fn batch<T: Serialize>(&self, payloads: &[T], options: &EnqueueOptions) -> Result<Vec<NewMessage>> {
        self.worker.check()?;
        payloads.iter().enumerate().map(|(index, payload)| self.json(index, payload, options)).collect()
    }

    pub(crate) fn each<T: Serialize>(&self, messages: &[(T, EnqueueOptions)]) -> Result<Vec<NewMessage>> {
        self.worker.check()?;
        let one = |(index, (payload, options)): (usize, &(T, EnqueueOptions))| {
            let message = self.json(index, payload, options);
            let checked = message.and_then(|message| message.check().map(|()| message).map_err(Error::from));
            checked.map_err(|error| match error {
                // An error about the payload names its index already.
                Error::ValidationFailed { reason } if !reason.starts_with("payload ") => {
                    Error::invalid(format!("message {index}: {reason}"))
                }
                error => error,
            })
        };
        messages.iter().enumerate().map(one).collect()
    }

    async fn put(&self, operation: &'static str, messages: Vec<NewMessage>) -> Result<Vec<QueueMessage>> {
        self.worker.check()?;
        let act = async {
            let enqueued = self.store.kernel.enqueue(&self.queue, None, messages.clone()).await;
            enqueued.map_err(|error| Error::of_queue(&self.queue.name, error))
        };
        let enqueued = self.observer.watch(operation, act).await?;
        self.observer.count("enqueued", enqueued.iter().filter(|enqueued| !enqueued.duplicate).count());
        Ok(self.answers(messages, enqueued))
    }

    /// What was stored, from the write's own answer.
    fn answers(&self, messages: Vec<NewMessage>, enqueued: Vec<tenure_store::Enqueued>) -> Vec<QueueMessage> {
        let queue_id = self.queue_id();
        let pairs = messages.into_iter().zip(enqueued);
        pairs.map(|(message, enqueued)| QueueMessage::enqueued(queue_id, message, enqueued)).collect()
    }
}
