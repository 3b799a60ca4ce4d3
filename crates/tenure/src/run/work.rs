//! What happens to one message, or to the messages of one key: the handler, and what its answer means.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tenure_store::{Answer, Fence, KeyBatch, Micros};
use tokio_util::sync::CancellationToken;

use super::keeper::{Keeper, Leased};
use super::{Delivery, Outcome, RetryPolicy, Summary, jittered};
use crate::error::Result;
use crate::observe::Observer;
use crate::types::{InTransaction, QueueMessage, length};
use crate::verb::Verb;

pub(super) type Handler = Arc<dyn Fn(Delivery) -> BoxFuture<'static, Result<Outcome, String>> + Send + Sync>;

/// What was leased together and is handled one after the other, with the id of its queue.
#[allow(clippy::large_enum_variant, reason = "nearly every unit is a message")]
pub(super) enum Unit {
    Message(i64, tenure_store::Message),
    Key(i64, KeyBatch),
}

#[derive(Default)]
pub(super) struct Counts {
    completed: AtomicU64,
    retried: AtomicU64,
    snoozed: AtomicU64,
    buried: AtomicU64,
    lost: AtomicU64,
    released: AtomicU64,
}

impl Counts {
    pub(super) fn summary(&self) -> Summary {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Summary {
            completed: read(&self.completed),
            retried: read(&self.retried),
            snoozed: read(&self.snoozed),
            buried: read(&self.buried),
            lost: read(&self.lost),
            released: read(&self.released),
        }
    }
}

/// What the tasks of a loop share.
pub(super) struct Work {
    pub(super) kernel: tenure_store::Store,
    pub(super) queue: tenure_store::Queue,
    pub(super) worker: i64,
    pub(super) observer: Observer,
    pub(super) call: Handler,
    pub(super) keeper: Arc<Keeper>,
    pub(super) retry: RetryPolicy,
    pub(super) time_limit: Option<Duration>,
    pub(super) counts: Counts,
    /// Messages, and keys with their messages, that are being released.
    pub(super) releasing: AtomicU64,
    /// Cancelled when the loop was told to stop: no further message is handed out.
    pub(super) stopping: CancellationToken,
}

/// Below every position: no message of a key was handed out.
const UNSEEN: i64 = i64::MIN;
/// The shortest and the longest delay that the kernel takes.
const SHORTEST_DELAY: Duration = Duration::from_millis(1);
const LONGEST_DELAY: Duration = Duration::from_secs(100 * 365 * 86_400);
/// How long a call to a database that is away waits before it is repeated: this long at first, then twice as long each time.
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(2);

/// What a handler's answer means for its message.
struct Verdict {
    verb: Verb,
    message: Delivered,
}

/// A message that a handler was given.
struct Delivered {
    id: i64,
    fence: Fence,
    leased_at: Option<Micros>,
    in_transaction: InTransaction,
}

/// Ends the keeper's care for a lease when its task panics: otherwise it would be extended for as long as the loop runs. A task
/// that is aborted leaves its lease to the loop, which releases it.
struct ForgetOnPanic(Arc<Keeper>, u64);

impl Drop for ForgetOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.remove(self.1);
        }
    }
}

impl Work {
    /// Puts what was just leased under the keeper's care.
    pub(super) fn register(&self, units: Vec<Unit>) -> Vec<(u64, Unit)> {
        let keep = |unit: Unit| {
            let (what, asked, lease) = match &unit {
                Unit::Message(_, message) => (
                    Leased::Message(message.fence()),
                    message.asked_at(),
                    length(message.leased_until, message.leased_at),
                ),
                Unit::Key(_, batch) => {
                    let leased_at = batch.messages.first().and_then(|message| message.leased_at);
                    (
                        Leased::Key { token: batch.token, seen: UNSEEN },
                        batch.asked_at(),
                        length(batch.leased_until, leased_at),
                    )
                }
            };
            (self.keeper.add(what, asked.into(), lease), unit)
        };
        units.into_iter().map(keep).collect()
    }

    pub(super) async fn handle(self: Arc<Self>, ticket: u64, unit: Unit) {
        let _kept = ForgetOnPanic(self.keeper.clone(), ticket);
        match unit {
            Unit::Message(queue, message) => {
                let verdict = self.deliver(ticket, queue, message).await;
                self.finish(ticket, verdict).await;
            }
            Unit::Key(queue, batch) => self.handle_key(ticket, queue, batch).await,
        }
        self.keeper.remove(ticket);
    }

    /// The messages of a key, one after the other. The first that must be tried again sends the rest back behind it, and so
    /// does the end of the loop; messages that were not handed out have used no attempt.
    async fn handle_key(&self, ticket: u64, queue: i64, batch: KeyBatch) {
        let mut seen = UNSEEN;
        for message in batch.messages {
            if self.stopping.is_cancelled() {
                break;
            }
            let position = message.id;
            let verdict = match self.deliver(ticket, queue, message).await {
                Some(verdict) if verdict.verb.delay().is_some() => {
                    match self.rest(ticket, batch.token, seen, verdict).await {
                        Some(verdict) => Some(verdict),
                        None => return,
                    }
                }
                verdict => verdict,
            };
            if !self.finish(ticket, verdict).await {
                break;
            }
            seen = position;
        }
        self.settle(&Act::ReleaseKey(batch.token, Duration::ZERO, seen)).await;
    }

    /// Gives a key back with a delay, so that no message of the key overtakes the one that must be tried again: that keeps its
    /// place. None then. The verdict: the message is gone, so that the key has no reason to rest.
    async fn rest(&self, ticket: u64, token: i64, before: i64, verdict: Verdict) -> Option<Verdict> {
        let fence = verdict.message.fence;
        let (seen, delay) = match verdict.verb {
            Verb::Snooze(delay) => (before, delay),
            _ => (fence.id, verdict.verb.delay().unwrap_or_default()),
        };
        if self.settle(&Act::Look(fence)).await == Some(Answer::Lost) {
            return Some(verdict);
        }
        let answer = self.settle(&Act::ReleaseKey(token, delay, seen)).await;
        self.conclude(ticket, &verdict, answer).await;
        None
    }

    /// Calls the handler and decides what its answer means for this message; none: the lease was lost before.
    async fn deliver(&self, ticket: u64, queue: i64, message: tenure_store::Message) -> Option<Verdict> {
        let (fence, own_limit, attempt) = (message.fence(), message.max_attempts, message.attempts);
        let leased_at = message.leased_at;
        let message = QueueMessage::leased(queue, message);
        let delivered = Delivered { id: message.id, fence, leased_at, in_transaction: message.in_transaction.clone() };
        let lost = self.keeper.hand_out(ticket, (delivered.id, fence), &delivered.in_transaction)?;
        self.observer.count("delivered", 1);
        let answer = self.answer(Delivery { message, lost: lost.clone() }, &lost).await;
        self.keeper.handler_ended(ticket);
        let delay = |delay: Duration| delay.clamp(SHORTEST_DELAY, LONGEST_DELAY);
        let verb = match answer {
            Ok(Outcome::Complete) => Verb::Complete,
            Ok(Outcome::Bury(reason)) => Verb::Bury(reason),
            Ok(Outcome::Snooze(rest)) => Verb::Snooze(delay(rest)),
            Ok(Outcome::RetryAfter(rest)) => {
                let error = format!("the handler wants a retry after {rest:?}");
                self.failed(delivered.id, own_limit, attempt, delay(rest), error).await
            }
            Err(error) => {
                let rest = delay(self.retry.delay(i32::try_from(attempt).unwrap_or(i32::MAX)));
                self.failed(delivered.id, own_limit, attempt, rest, error).await
            }
        };
        Some(Verdict { verb, message: delivered })
    }

    /// What becomes of a message whose handler failed: another attempt, or its burial.
    async fn failed(&self, id: i64, own_limit: Option<i64>, attempt: i64, rest: Duration, error: String) -> Verb {
        if self.limit(own_limit).await.is_some_and(|limit| attempt >= limit) {
            tracing::error!(message_id = id, attempt, %error, "the handler failed for the last time");
            Verb::Bury(format!("failed in attempt {attempt}, the last one: {error}"))
        } else {
            tracing::warn!(message_id = id, attempt, ?rest, %error, "the handler failed, and will be called again");
            Verb::RetryAfter(rest)
        }
    }

    /// What the handler says, or that it took too long: then its token is cancelled, for what it has started elsewhere. A panic
    /// of the handler, of its error's text or of what is dropped with it is a failure.
    async fn answer(&self, delivery: Delivery, lost: &CancellationToken) -> Result<Outcome, String> {
        let work = async {
            let mut work = (self.call)(delivery);
            let Some(limit) = self.time_limit else { return work.await };
            tokio::time::timeout(limit, &mut work).await.unwrap_or_else(|_| {
                lost.cancel();
                Err(format!("the handler did not end within its time limit of {limit:?}"))
            })
        };
        let answer = AssertUnwindSafe(work).catch_unwind().await;
        answer.unwrap_or_else(|panic| Err(format!("the handler panicked: {}", panic_text(&*panic))))
    }

    /// How many attempts a message has: its own limit, or the queue's as it is now, because an operator may have changed it
    /// while the loop runs. Only failed messages pay for the look.
    async fn limit(&self, own: Option<i64>) -> Option<i64> {
        if own.is_some() {
            return own;
        }
        let mut rest = FIRST_REST;
        loop {
            match self.kernel.queue_get(&self.queue.name).await {
                Ok(queue) => return queue.settings.max_attempts.map(i64::from),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, "cannot look up how often messages may be retried, and will try again");
                    rest = self.pause(rest).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot look up how often messages may be retried; the limit at the start holds");
                    return self.queue.settings.max_attempts.map(i64::from);
                }
            }
        }
    }

    /// Waits before a call to the database is repeated. How long to wait the next time.
    async fn pause(&self, rest: Duration) -> Duration {
        tokio::time::sleep(jittered(rest)).await;
        (rest * 2).min(LONGEST_REST)
    }

    /// Carries a verdict out; none: the lease was gone before the handler was called. Whether the message has ended under it.
    async fn finish(&self, ticket: u64, verdict: Option<Verdict>) -> bool {
        let Some(mut verdict) = verdict else {
            self.count(&self.counts.lost, "lost");
            return false;
        };
        if let Verb::Bury(reason) = &mut verdict.verb {
            // PostgreSQL rejects NUL in text. Cap the length to keep list pages small.
            *reason = reason.replace('\0', " ").chars().take(10_000).collect();
        }
        let act = Act::Finish(verdict.verb.clone(), verdict.message.fence.by(self.worker));
        let answer = self.settle(&act).await;
        self.conclude(ticket, &verdict, answer).await
    }

    /// Counts what has become of a message, by what the database says and not by what the handler wanted. Whether the message
    /// has ended under its lease.
    async fn conclude(&self, ticket: u64, verdict: &Verdict, answer: Option<Answer>) -> bool {
        let done = matches!(answer, Some(Answer::Done | Answer::Already));
        let (counter, event) = match verdict.verb {
            Verb::RetryAfter(_) if done => (&self.counts.retried, "retried"),
            Verb::Snooze(_) if done => (&self.counts.snoozed, "snoozed"),
            Verb::Bury(_) if done => (&self.counts.buried, "buried"),
            _ if done || self.is_completed(ticket, verdict, answer).await => (&self.counts.completed, "completed"),
            _ => {
                let (message_id, operation) = (verdict.message.id, verdict.verb.names().0);
                // Tells a message that was freed or deleted under its lease from a lease that this loop could not keep.
                let in_time = self.keeper.is_exclusive(ticket);
                tracing::info!(
                    message_id,
                    operation,
                    in_time,
                    "a message was no longer leased when its handler had ended"
                );
                self.count(&self.counts.lost, "lost");
                return false;
            }
        };
        self.count(counter, event);
        true
    }

    /// Whether a message that the verb did not find was completed by its handler itself: the archive says so, or it is in no
    /// table, no other consumer can have had it, and the handler has completed it in a transaction or says that it is done.
    async fn is_completed(&self, ticket: u64, verdict: &Verdict, answer: Option<Answer>) -> bool {
        let Verdict { verb, message } = verdict;
        match answer {
            Some(Answer::Unknown) => {
                let done = matches!(verb, Verb::Complete) || message.in_transaction.is_completed();
                done && self.keeper.is_exclusive(ticket)
            }
            Some(Answer::Lost) => self.archived(message.id).await.is_some_and(|archived| {
                archived.outcome == tenure_store::Outcome::Completed
                    && archived.leased_at == message.leased_at
                    && archived.worker == Some(self.worker)
            }),
            _ => false,
        }
    }

    /// A message in the archive; asks until the database answers.
    async fn archived(&self, id: i64) -> Option<tenure_store::Archived> {
        let mut rest = FIRST_REST;
        loop {
            match self.kernel.archive_get(id).await {
                Ok(archived) => return archived,
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, message_id = id, "cannot look what has become of a message, and will try again");
                    rest = self.pause(rest).await;
                }
                Err(error) => {
                    tracing::warn!(%error, message_id = id, "could not look what has become of a message");
                    return None;
                }
            }
        }
    }

    fn count(&self, counter: &AtomicU64, event: &'static str) {
        counter.fetch_add(1, Ordering::Relaxed);
        self.observer.count(event, 1);
    }

    /// Asks until the database answers: what a handler has done must not be done again for want of a connection.
    async fn settle(&self, act: &Act) -> Option<Answer> {
        self.settle_by(act.name(), || act.apply(&self.kernel)).await
    }

    async fn settle_by<F>(&self, operation: &'static str, apply: impl Fn() -> F) -> Option<Answer>
    where
        F: Future<Output = tenure_store::Result<Answer>>,
    {
        let mut rest = FIRST_REST;
        loop {
            match self.observer.watch(operation, async { Ok(apply().await?) }).await {
                Ok(answer) => return Some(answer),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, operation, "cannot finish a message, and will try again");
                    rest = self.pause(rest).await;
                }
                Err(error) => {
                    tracing::error!(%error, operation, "cannot finish a message; it comes again when its lease ends");
                    return None;
                }
            }
        }
    }

    /// Gives back what no handler has seen.
    pub(super) async fn put_back(&self, waiting: impl IntoIterator<Item = (u64, Unit)>) {
        let (mut fences, mut keys) = (Vec::new(), Vec::new());
        for (ticket, unit) in waiting {
            self.keeper.remove(ticket);
            match unit {
                Unit::Message(_, message) => fences.push(message.fence()),
                Unit::Key(_, batch) => keys.push((batch.token, UNSEEN)),
            }
        }
        self.release(&fences, keys, async { self.kernel.put_back(&fences).await.map(drop) }).await;
    }

    /// Gives back what is still under the keeper's care.
    pub(super) async fn release_all(&self) {
        let (mut fences, mut keys) = (Vec::new(), Vec::new());
        for what in self.keeper.take_all() {
            match what {
                Leased::Message(fence) => fences.push(fence),
                Leased::Key { token, seen } => keys.push((token, seen)),
            }
        }
        self.release(&fences, keys, async { self.kernel.release(&fences).await.map(drop) }).await;
    }

    async fn release(
        &self,
        fences: &[Fence],
        keys: Vec<(i64, i64)>,
        messages: impl Future<Output = tenure_store::Result<()>>,
    ) {
        self.releasing.fetch_add((fences.len() + keys.len()) as u64, Ordering::Relaxed);
        if !fences.is_empty() {
            self.given_back(fences.len(), messages.await);
        }
        for (token, seen) in keys {
            self.given_back(1, self.kernel.key_release(token, Duration::ZERO, Some(seen)).await.map(drop));
        }
    }

    fn given_back(&self, count: usize, result: tenure_store::Result<()>) {
        self.releasing.fetch_sub(count as u64, Ordering::Relaxed);
        match result {
            Ok(()) => {
                self.counts.released.fetch_add(count as u64, Ordering::Relaxed);
                self.observer.count("released", count);
            }
            Err(error) => {
                tracing::warn!(%error, messages = count, "could not release messages; they stay leased until their leases expire");
            }
        }
    }
}

/// What the loop asks of the database for one message, or for one key.
enum Act {
    Finish(Verb, Fence),
    /// Token, rest, and the last position that the handler was given.
    ReleaseKey(i64, Duration, i64),
    /// Whether this message is still held.
    Look(Fence),
}

impl Act {
    fn name(&self) -> &'static str {
        match self {
            Act::Finish(verb, _) => verb.names().0,
            Act::ReleaseKey(..) => "release_key",
            Act::Look(_) => "look",
        }
    }

    async fn apply(&self, kernel: &tenure_store::Store) -> tenure_store::Result<Answer> {
        match self {
            Act::Finish(verb, fence) => Ok(verb.apply(kernel, &[*fence]).await?[0]),
            Act::ReleaseKey(token, rest, seen) => kernel.key_release(*token, *rest, Some(*seen)).await,
            Act::Look(fence) => Ok(if kernel.holds(&[*fence]).await?[0] { Answer::Done } else { Answer::Lost }),
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no text".to_owned())
}

#[cfg(all(test, feature = "sqlite"))]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use std::sync::Mutex;

    use tenure_store::{Error, Kind, Store};

    use super::*;

    async fn work() -> Work {
        let kernel = Store::connect(":memory:").await.unwrap();
        kernel.install().await.unwrap();
        let queue = kernel.queue_create("jobs", tenure_store::Settings::default()).await.unwrap();
        Work {
            keeper: Arc::new(Keeper::new(&kernel)),
            kernel,
            queue,
            worker: 1,
            observer: Observer { backend: "sqlite", queue: "jobs".to_owned() },
            call: Arc::new(|_| std::future::ready(Ok(Outcome::Complete)).boxed()),
            retry: RetryPolicy::default(),
            time_limit: None,
            counts: Counts::default(),
            releasing: AtomicU64::default(),
            stopping: CancellationToken::new(),
        }
    }

    #[tokio::test]
    async fn an_answer_is_believed_also_after_an_error_that_left_the_outcome_open() {
        let work = work().await;
        for answer in [Answer::Lost, Answer::Done] {
            let away = Error::new(Kind::Unavailable, "the connection was lost").ambiguous();
            let error = Mutex::new(Some(away));
            let apply = || std::future::ready(error.lock().unwrap().take().map_or(Ok(answer), Err));
            assert_eq!(work.settle_by("release_key", apply).await, Some(answer));
        }
    }
}
