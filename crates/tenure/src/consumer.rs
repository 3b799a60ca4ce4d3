//! Dequeueing by hand: lease, then archive, delete, release or extend, each fenced by this consumer's own lease.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure_store::{Answer, Claim, Fence, KeyBatch, Kind, Message};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::observe::Observer;
use crate::run::Run;
use crate::store::{Store, count};
use crate::tables::done;
use crate::types::{ArchivedMessage, QueueMessage, Span, WorkerStatus, length};
use crate::verb::Verb;
use crate::worker::Worker;

/// Takes messages out of one queue.
///
/// Most programs want [`run`](Consumer::run). These are the verbs for those who keep the loop in their own hands.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// use tenure::{Admin, Consumer, Producer, Store};
/// let store = Store::connect(":memory:").await?;
/// store.install().await?;
/// Admin::on(&store).create_queue("mail").await?;
/// Producer::on(&store, "mail", "host-1", 1).await?.batch_enqueue(&["to ada", "to bob"]).await?;
///
/// let consumer = Consumer::on(&store, "mail", "host-1", 2).await?;
/// let messages = consumer.dequeue().await?;
/// assert_eq!(messages[0].json::<String>()?, "to ada");
/// consumer.archive(&messages[0]).await?.expect("the lease is ours");
/// consumer.release(&messages[1]).await?;
/// assert_eq!(consumer.dequeue().await?[0].read_ct, 2);
/// # Ok(())
/// # }
/// ```
///
/// Clones are the same consumer: a handler that completes its message in a transaction of its own takes one along.
#[derive(Clone, Debug)]
pub struct Consumer {
    pub(crate) store: Store,
    pub(crate) queue: tenure_store::Queue,
    pub(crate) worker: Arc<Worker>,
    pub(crate) observer: Observer,
    /// The leases that this consumer was given by hand, so that a bare id names one of them and of no other consumer.
    held: Arc<Mutex<Holdings>>,
}

/// The leases of messages that a consumer was given by hand, by their ids.
#[derive(Debug, Default)]
struct Holdings {
    held: HashMap<i64, Held>,
    /// How many there may be before those that ended long ago are looked for.
    enough: usize,
}

#[derive(Debug)]
struct Held {
    fence: Fence,
    until: Instant,
    /// How long after its end the lease is remembered: a message that no other consumer has taken can still be finished.
    spare: Duration,
}

impl Holdings {
    fn add(&mut self, messages: &[Message], now: Instant) {
        if self.held.len() >= self.enough {
            self.held.retain(|_, held| held.until + held.spare > now);
            self.enough = 2 * self.held.len().max(512);
        }
        for message in messages {
            let lease = length(message.leased_until, message.leased_at);
            let held = Held { fence: message.fence(), until: now + lease, spare: 10 * lease };
            self.held.insert(message.identity(), held);
        }
    }

    /// What is remembered of exactly this lease.
    fn of(&mut self, lease: &Lease) -> Option<&mut Held> {
        self.held.get_mut(&lease.id).filter(|held| lease.fence == Some(held.fence))
    }

    /// Notes that a message is to end with a transaction of the caller's. If that is rolled back the lease still runs.
    fn may_end(&mut self, id: i64) {
        if let Some(held) = self.held.get_mut(&id) {
            held.spare = Duration::ZERO;
        }
    }
}

/// What the kernel hands out at a time to all that ask together, so that none waits long for one that takes much.
const HAND: usize = 1000;

/// A message under this consumer's lease: the message itself, or its id.
///
/// ```
/// use tenure::Lease;
/// let by_id = Lease::from(4711);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    id: i64,
    fence: Option<Fence>,
}

impl From<&QueueMessage> for Lease {
    fn from(message: &QueueMessage) -> Self {
        Lease { id: message.id, fence: message.fence }
    }
}

impl From<i64> for Lease {
    fn from(id: i64) -> Self {
        Lease { id, fence: None }
    }
}

impl From<&i64> for Lease {
    fn from(id: &i64) -> Self {
        Lease::from(*id)
    }
}

impl Consumer {
    /// Connects, and registers as a worker in this place. An earlier incarnation here is removed and its messages are
    /// free: a crashed consumer restarts at once. `port` is any number that tells consumers of one host apart.
    ///
    /// # Errors
    /// `QueueNotFound`, or why the database cannot be used.
    pub async fn new(config: &Config, queue_name: &str, hostname: &str, port: i32) -> Result<Self> {
        Self::on(&Store::connect_with_config(config).await?, queue_name, hostname, port).await
    }

    /// The same over a store that is already connected.
    ///
    /// # Errors
    /// As [`new`](Consumer::new).
    pub async fn on(store: &Store, queue_name: &str, hostname: &str, port: i32) -> Result<Self> {
        let queue = store.queue(queue_name).await?;
        let info = store.workers().register_as("consumer", queue_name, Some(queue.id), hostname, port).await?;
        Ok(Consumer {
            worker: Arc::new(Worker::start(store, &info)),
            observer: Observer { backend: store.backend_name(), queue: queue.name.clone() },
            store: store.clone(),
            queue,
            held: Arc::default(),
        })
    }

    /// Leases up to the configuration's batch size of messages, for as long as the queue's settings say, oldest first. None when
    /// the queue is empty or paused, or this consumer is suspended; fewer than there are when other consumers of this process
    /// take messages at the same time. Messages with keys come through [`run`](Consumer::run) and
    /// [`MessageQueue`](crate::MessageQueue). When the queue was deleted and created anew, by any process, this continues with the
    /// new one within about a second.
    ///
    /// # Errors
    /// `WorkerStopped` when this consumer was stopped, `QueueNotFound` when the queue was deleted.
    pub async fn dequeue(&self) -> Result<Vec<QueueMessage>> {
        self.take(self.store.config.default_max_batch_size, None, Duration::ZERO).await
    }

    /// Leases up to `batch_size` messages for a time of the caller's choice; a batch size of 0 answers with none.
    ///
    /// # Errors
    /// `ValidationFailed` for a lock time that is not positive; `WorkerStopped` and `QueueNotFound` as [`dequeue`](Consumer::dequeue).
    pub async fn dequeue_with_options(&self, batch_size: usize, lock: impl Into<Span>) -> Result<Vec<QueueMessage>> {
        self.take(batch_size, Some(lock.into()), Duration::ZERO).await
    }

    /// The same, but waits for the first message: none only when the wait is over.
    ///
    /// # Errors
    /// As [`dequeue_with_options`](Consumer::dequeue_with_options).
    pub async fn dequeue_within(
        &self,
        wait: Duration,
        batch_size: usize,
        lock: impl Into<Span>,
    ) -> Result<Vec<QueueMessage>> {
        self.take(batch_size, Some(lock.into()), wait).await
    }

    async fn take(&self, limit: usize, lock: Option<Span>, wait: Duration) -> Result<Vec<QueueMessage>> {
        self.worker.check()?;
        let lease = lock.map(|lock| lock.positive("the lock time")).transpose()?;
        let act = async {
            let first = self.claim(limit, lease, wait).await;
            let (queue, mut messages) = first.map_err(|error| self.judge(error))?;
            let mut more = messages.len();
            while more > 0 && limit > HAND && messages.len() < limit {
                let next = self.claim(limit - messages.len(), lease, Duration::ZERO).await;
                // The messages that are already leased go to the caller: without it they would stay leased to no handler
                // until their leases expire. An error that lasts comes back with the next call.
                let next = next.map_err(|error| self.judge(error)).inspect_err(|error| {
                    tracing::warn!(%error, leased = messages.len(), "a batch is shorter than it could be");
                });
                let (_, next) = next.unwrap_or_default();
                more = next.len();
                messages.extend(next);
            }
            Ok((queue, messages))
        };
        let (queue, messages) = self.observer.watch("dequeue", act).await?;
        self.observer.count("delivered", messages.len());
        self.held().add(&messages, Instant::now());
        Ok(messages.into_iter().map(|message| QueueMessage::leased(queue, message)).collect())
    }

    /// Leases messages of the queue that has this consumer's name now. The queue's id, and the messages.
    pub(crate) async fn claim(
        &self,
        limit: usize,
        lease: Option<Duration>,
        wait: Duration,
    ) -> tenure_store::Result<(i64, Vec<Message>)> {
        let (kernel, worker) = (&self.store.kernel, Some(self.worker.id));
        let claim = |queue: tenure_store::Queue, wait| async move {
            Ok((queue.id, kernel.claim(Claim { lanes: queue.lanes, limit, lease, worker, wait }).await?))
        };
        self.store.follow(&self.queue, wait, claim).await
    }

    /// The same for one key.
    pub(crate) async fn claim_key(
        &self,
        lease: Option<Duration>,
        wait: Duration,
    ) -> tenure_store::Result<(i64, Option<KeyBatch>)> {
        let (kernel, worker) = (&self.store.kernel, Some(self.worker.id));
        let claim = |queue: tenure_store::Queue, wait| async move {
            Ok((queue.id, kernel.claim_key(&queue.lanes, lease, worker, wait).await?))
        };
        self.store.follow(&self.queue, wait, claim).await
    }

    /// What a claim of this consumer has said.
    pub(crate) fn judge(&self, error: tenure_store::Error) -> Error {
        match error.kind() {
            Kind::NotFound => Error::of_queue(&self.queue.name, error),
            _ => self.worker.judge(error),
        }
    }

    /// Completes a message and keeps it in the archive: for the queue's `retain_completed`, and forever when the queue has none,
    /// until [`Admin::prune_archive`](crate::Admin::prune_archive) removes it. None when the lease is not this consumer's, or not any more.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn archive(&self, message: impl Into<Lease>) -> Result<Option<ArchivedMessage>> {
        let leases = self.fenced([message]);
        let (_, fences) = self.fences(&leases);
        let act = async { Ok(self.store.kernel.archive(&fences).await?) };
        let mut archived = self.observer.watch("archive", act).await?;
        self.observer.count("completed", archived.iter().flatten().count());
        self.forget(&leases);
        Ok(archived.pop().flatten().map(ArchivedMessage::from))
    }

    /// The same for many, in one statement. Which of them were archived.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn archive_batch<I>(&self, messages: I) -> Result<Vec<i64>>
    where
        I: IntoIterator,
        I::Item: Into<Lease>,
    {
        let leases = self.fenced(messages);
        let (_, fences) = self.fences(&leases);
        let act = async { Ok(self.store.kernel.archive(&fences).await?) };
        let archived = self.observer.watch("archive", act).await?;
        let ids: Vec<i64> = archived.into_iter().flatten().map(|archived| archived.id).collect();
        self.observer.count("completed", ids.len());
        self.forget(&leases);
        Ok(ids)
    }

    /// Completes a message as its queue wants: kept for a while, or not at all. Whether the lease was this consumer's.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn complete(&self, message: impl Into<Lease>) -> Result<bool> {
        self.one(&Verb::Complete, message.into()).await
    }

    /// Completes a message and keeps nothing. Whether the lease was this consumer's.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn delete(&self, message: impl Into<Lease>) -> Result<bool> {
        self.one(&Verb::Discard, message.into()).await
    }

    /// The same for many, in one statement. One answer each, in order.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn delete_batch<I>(&self, messages: I) -> Result<Vec<bool>>
    where
        I: IntoIterator,
        I::Item: Into<Lease>,
    {
        self.many(&Verb::Discard, messages.into_iter().map(Into::into).collect()).await
    }

    /// Gives a message back, visible at once; its delivery stays counted. Whether the lease was this consumer's.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn release(&self, message: impl Into<Lease>) -> Result<bool> {
        self.one(&Verb::Release, message.into()).await
    }

    /// The same for many, in one statement. One answer each, in order.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn release_batch<I>(&self, messages: I) -> Result<Vec<bool>>
    where
        I: IntoIterator,
        I::Item: Into<Lease>,
    {
        self.many(&Verb::Release, messages.into_iter().map(Into::into).collect()).await
    }

    /// Gives a message back, visible after a delay, at its place. Whether the lease was this consumer's.
    ///
    /// # Errors
    /// `ValidationFailed` for a delay that is not positive.
    pub async fn retry_after(&self, message: impl Into<Lease>, delay: impl Into<Span>) -> Result<bool> {
        let delay = delay.into().positive("the delay")?;
        self.one(&Verb::RetryAfter(delay), message.into()).await
    }

    /// Gives a message back, visible after a delay, and the delivery does not count as an attempt: for work for which it is too
    /// early. It then stands behind the messages that are ready; one with a key keeps its place. Whether the lease was this
    /// consumer's.
    ///
    /// # Errors
    /// `ValidationFailed` for a delay that is not positive.
    pub async fn snooze(&self, message: impl Into<Lease>, delay: impl Into<Span>) -> Result<bool> {
        let delay = delay.into().positive("the delay")?;
        self.one(&Verb::Snooze(delay), message.into()).await
    }

    /// Declares a message dead, for a reason. Whether the lease was this consumer's.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn bury(&self, message: impl Into<Lease>, reason: &str) -> Result<bool> {
        self.one(&Verb::Bury(reason.to_owned()), message.into()).await
    }

    /// Extends a lease from its end, or from now if that has passed. Whether it was this consumer's. A message with a key is leased
    /// with its key: the lease of the key is extended.
    ///
    /// # Errors
    /// `ValidationFailed` for an extension that is not positive.
    pub async fn extend_visibility(&self, message: impl Into<Lease>, additional: impl Into<Span>) -> Result<bool> {
        let extra = additional.into().positive("the extension")?;
        let leases = self.fenced([message]);
        let (_, fences) = self.fences(&leases);
        let act = async { Ok(self.store.kernel.extend(&fences, extra).await?) };
        let extended = self.observer.watch("extend", act).await?.first().is_some_and(Option::is_some);
        if extended && let Some(held) = self.held().of(&leases[0]) {
            held.until += extra;
        }
        Ok(extended)
    }

    /// Completes a message inside a transaction of the caller's on the same PostgreSQL database: its work and its
    /// completion are one.
    ///
    /// # Errors
    /// `LeaseLost` when another consumer may be working on it: roll back. `UnsupportedDsn` when the store is not PostgreSQL.
    pub async fn complete_in_postgres(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        message: &QueueMessage,
    ) -> Result<()> {
        let (_, fences) = self.fences(&self.fenced([message]));
        let act = async { Ok(self.store.kernel.complete_in_postgres(transaction, &fences).await?) };
        self.only_done(message, &self.observer.watch("complete_in_transaction", act).await?)
    }

    /// The same in a transaction on the same SQLite file. It does not wait: call it where the transaction lives.
    ///
    /// # Errors
    /// As [`complete_in_postgres`](Consumer::complete_in_postgres).
    #[cfg(feature = "sqlite")]
    pub fn complete_in_sqlite(&self, transaction: &rusqlite::Transaction<'_>, message: &QueueMessage) -> Result<()> {
        let (_, fences) = self.fences(&self.fenced([message]));
        self.only_done(message, &self.store.kernel.complete_in_sqlite(transaction, &fences)?)
    }

    /// Runs a handler for every message, until told to stop. See [`Run`].
    pub fn run<H>(&self, handler: H) -> Run<'_, H> {
        Run::new(self, handler)
    }

    /// How many messages this consumer holds.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn count_by_worker(&self) -> Result<i64> {
        Ok(count(self.store.kernel.worker_held(self.worker.id).await?))
    }

    /// The number of this incarnation.
    pub fn worker_id(&self) -> i64 {
        self.worker.id
    }

    /// The queue.
    pub fn queue_name(&self) -> &str {
        &self.queue.name
    }

    /// Says that this consumer lives. It also does so by itself, at the configuration's interval.
    ///
    /// # Errors
    /// `WorkerStopped` when it was stopped.
    pub async fn heartbeat(&self) -> Result<()> {
        self.store.workers().heartbeat(self.worker.id).await
    }

    /// What this consumer's worker is doing.
    ///
    /// # Errors
    /// `WorkerNotFound` when it was purged.
    pub async fn status(&self) -> Result<WorkerStatus> {
        self.store.workers().get_status(self.worker.id).await
    }

    /// Is handed nothing until it is resumed.
    ///
    /// # Errors
    /// `InvalidStateTransition`.
    pub async fn suspend(&self) -> Result<()> {
        self.store.workers().suspend(self.worker.id).await
    }

    /// Is handed messages again.
    ///
    /// # Errors
    /// `InvalidStateTransition`.
    pub async fn resume(&self) -> Result<()> {
        self.store.workers().resume(self.worker.id).await
    }

    /// Stops this consumer: what it holds is free at once, and it is handed nothing more.
    ///
    /// # Errors
    /// `InvalidStateTransition` when it is stopped already, `WorkerNotFound` when another incarnation has replaced it.
    pub async fn shutdown(&self) -> Result<()> {
        self.worker.shutdown().await
    }

    fn held(&self) -> MutexGuard<'_, Holdings> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leases with their fences: for a bare id, the one under which this consumer holds the message now, if it does.
    fn fenced(&self, leases: impl IntoIterator<Item: Into<Lease>>) -> Vec<Lease> {
        let held = self.held();
        let fenced = |lease: Lease| {
            let fence = lease.fence.or_else(|| held.held.get(&lease.id).map(|held| held.fence));
            Lease { fence, ..lease }
        };
        leases.into_iter().map(|lease| fenced(lease.into())).collect()
    }

    /// The fences of those leases that have one, and where in the input each stands.
    fn fences(&self, leases: &[Lease]) -> (Vec<usize>, Vec<Fence>) {
        let places = leases.iter().enumerate();
        places.filter_map(|(n, lease)| Some((n, lease.fence?.by(self.worker.id)))).unzip()
    }

    async fn one(&self, verb: &Verb, lease: Lease) -> Result<bool> {
        Ok(self.many(verb, vec![lease]).await?[0])
    }

    async fn many(&self, verb: &Verb, leases: Vec<Lease>) -> Result<Vec<bool>> {
        let mut answers = vec![false; leases.len()];
        let leases = self.fenced(leases);
        let (places, fences) = self.fences(&leases);
        let (operation, event) = verb.names();
        let act = async { Ok(verb.apply(&self.store.kernel, &fences).await?) };
        for (place, done) in places.into_iter().zip(done(&self.observer.watch(operation, act).await?)) {
            answers[place] = done;
        }
        self.observer.count(event, answers.iter().filter(|done| **done).count());
        self.forget(&leases);
        Ok(answers)
    }

    /// Forgets these leases, and not those under which this consumer, or a clone of it, was given the messages again.
    fn forget(&self, leases: &[Lease]) {
        let mut held = self.held();
        for lease in leases {
            if held.of(lease).is_some() {
                held.held.remove(&lease.id);
            }
        }
    }

    fn only_done(&self, message: &QueueMessage, answers: &[Answer]) -> Result<()> {
        match answers {
            [Answer::Done] => {
                self.completes_in_transaction(message);
                Ok(())
            }
            _ => Err(Error::LeaseLost { id: message.id }),
        }
    }

    /// Notes that a message is completed if the caller's transaction commits.
    pub(crate) fn completes_in_transaction(&self, message: &QueueMessage) {
        message.in_transaction.completes();
        self.held().may_end(message.id);
    }
}

#[cfg(all(test, feature = "sqlite"))]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn leases_that_were_finished_are_forgotten() {
        let store = Store::connect(":memory:").await.unwrap();
        store.install().await.unwrap();
        store.queues().create("jobs").await.unwrap();
        let producer = crate::Producer::on(&store, "jobs", "host", 1).await.unwrap();
        let consumer = Consumer::on(&store, "jobs", "host", 2).await.unwrap();
        producer.batch_enqueue(&[1, 2, 3, 4]).await.unwrap();
        let messages = consumer.dequeue_with_options(4, 60).await.unwrap();
        assert_eq!(consumer.held().held.len(), 4);
        assert!(consumer.archive(messages[0].id).await.unwrap().is_some());
        assert_eq!(consumer.archive_batch([messages[1].id, messages[2].id]).await.unwrap().len(), 2);
        assert!(consumer.delete(messages[3].id).await.unwrap());
        assert!(consumer.held().held.is_empty());
    }

    #[tokio::test]
    async fn a_verb_on_an_old_lease_forgets_no_newer_one() {
        let store = Store::connect(":memory:").await.unwrap();
        store.install().await.unwrap();
        store.queues().create("jobs").await.unwrap();
        let producer = crate::Producer::on(&store, "jobs", "host", 1).await.unwrap();
        let consumer = Consumer::on(&store, "jobs", "host", 2).await.unwrap();
        producer.enqueue("x").await.unwrap();
        let old = consumer.dequeue().await.unwrap().remove(0);
        assert!(consumer.release(&old).await.unwrap());
        let id = consumer.clone().dequeue().await.unwrap()[0].id;
        assert!(!consumer.delete(&old).await.unwrap());
        // A clone was given the message again before this one forgets what it has finished.
        consumer.forget(&consumer.fenced([&old]));
        assert!(consumer.delete(id).await.unwrap(), "a bare id names the lease that runs");
        assert!(consumer.held().held.is_empty());
    }

    #[tokio::test]
    async fn leases_of_messages_completed_in_transactions_are_forgotten_when_they_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app.db");
        let store = Store::connect(&path.display().to_string()).await.unwrap();
        store.install().await.unwrap();
        store.queues().create("jobs").await.unwrap();
        let producer = crate::Producer::on(&store, "jobs", "host", 1).await.unwrap();
        let consumer = Consumer::on(&store, "jobs", "host", 2).await.unwrap();
        producer.batch_enqueue(&[1, 2, 3]).await.unwrap();
        let messages = consumer.dequeue_with_options(3, 60).await.unwrap();
        let mut app = rusqlite::Connection::open(&path).unwrap();
        for (message, commit) in [(&messages[0], true), (&messages[1], false)] {
            let transaction = app.transaction().unwrap();
            consumer.complete_in_sqlite(&transaction, message).unwrap();
            if commit { transaction.commit().unwrap() } else { transaction.rollback().unwrap() }
        }
        // The first two leases have just ended, and the third too, but it is remembered for longer.
        let left: Vec<i64> = {
            let mut held = consumer.held();
            held.enough = 0;
            held.add(&[], Instant::now() + Duration::from_secs(60));
            held.held.keys().copied().collect()
        };
        assert_eq!(left, [messages[2].id]);
        producer.enqueue(&4).await.unwrap();
        let rolled_back = consumer.dequeue_with_options(1, 60).await.unwrap().remove(0);
        let transaction = app.transaction().unwrap();
        consumer.complete_in_sqlite(&transaction, &rolled_back).unwrap();
        transaction.rollback().unwrap();
        assert!(consumer.delete(rolled_back.id).await.unwrap(), "a bare id names it as long as its lease runs");
    }
}
