//! What happens to one message, or to the messages of one key: the handler, and what its answer means.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_store::{Answer, Fence, KeyBatch};
use tokio_util::sync::CancellationToken;

use super::keeper::{Keeper, Leased};
use super::{Delivery, Outcome, RetryPolicy, Summary, jittered};
use crate::error::Result;
use crate::observe::Observer;
use crate::types::{InTransaction, QueueMessage, length};
use crate::verb::Verb;

pub(super) type Handler = Arc<dyn Fn(Delivery) -> BoxFuture<'static, Result<Outcome, String>> + Send + Sync>;

/// What was leased together and is handled one after the other.
#[allow(clippy::large_enum_variant, reason = "nearly every unit is a message")]
pub(super) enum Unit {
    Message(tenure_store::Message),
    Key(KeyBatch),
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
    /// Cancelled when the loop was told to stop: no further message is handed out.
    pub(super) stopping: CancellationToken,
}

/// Below every position: no message of a key was handed out.
const UNSEEN: i64 = i64::MIN;
/// The shortest delay that a database can keep.
const SHORTEST_REST: Duration = Duration::from_millis(1);
/// How long a call to a database that is away waits before it is repeated: this long at first, then twice as long each time.
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(2);

/// What a handler's answer means for its message.
struct Verdict {
    verb: Verb,
    in_transaction: InTransaction,
}

impl Work {
    /// Puts what was just leased under the keeper's care.
    pub(super) fn register(&self, units: Vec<Unit>) -> Vec<(u64, Unit)> {
        let keep = |unit: Unit| {
            let (what, asked, lease) = match &unit {
                Unit::Message(message) => (
                    Leased::Message(message.fence()),
                    message.asked_at(),
                    length(message.leased_until, message.leased_at),
                ),
                Unit::Key(batch) => {
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
        match unit {
            Unit::Message(message) => {
                let fence = message.fence();
                let verdict = self.deliver(ticket, message).await;
                self.finish(ticket, fence, verdict).await;
            }
            Unit::Key(batch) => self.handle_key(ticket, batch).await,
        }
        self.keeper.remove(ticket);
    }

    /// The messages of a key, one after the other. The first that must be tried again sends the rest back behind it, and so
    /// does the end of the loop; messages that were not handed out have used no attempt.
    async fn handle_key(&self, ticket: u64, batch: KeyBatch) {
        let mut seen = UNSEEN;
        let mut rest = Duration::ZERO;
        for message in batch.messages {
            if self.stopping.is_cancelled() {
                break;
            }
            let fence = message.fence();
            match self.deliver(ticket, message).await {
                // In place, with the key at rest: no message of this key overtakes it.
                Some(Verdict { verb: Verb::RetryAfter(delay), .. }) => {
                    (seen, rest) = (fence.id, delay);
                    self.count(&self.counts.retried, "retried");
                    break;
                }
                Some(Verdict { verb: Verb::Snooze(delay), .. }) => {
                    rest = delay;
                    self.count(&self.counts.snoozed, "snoozed");
                    break;
                }
                verdict => {
                    if !self.finish(ticket, fence, verdict).await {
                        break;
                    }
                    seen = fence.id;
                }
            }
        }
        self.settle(&Act::ReleaseKey(batch.token, rest, seen)).await;
    }

    /// Calls the handler and decides what its answer means for this message; none: the lease was lost before.
    async fn deliver(&self, ticket: u64, message: tenure_store::Message) -> Option<Verdict> {
        let (fence, own_limit, attempt) = (message.fence(), message.max_attempts, message.attempts);
        let message = QueueMessage::leased(self.queue.id, message);
        let (id, in_transaction) = (message.id, message.in_transaction.clone());
        let lost = self.keeper.hand_out(ticket, fence, &in_transaction)?;
        self.observer.count("delivered", 1);
        let answer = self.answer(Delivery { message, lost: lost.clone() }, &lost).await;
        self.keeper.handler_ended(ticket);
        let (rest, error) = match answer {
            Ok(Outcome::Complete) => return Some(Verdict { verb: Verb::Complete, in_transaction }),
            Ok(Outcome::Bury(reason)) => return Some(Verdict { verb: Verb::Bury(reason), in_transaction }),
            Ok(Outcome::Snooze(rest)) => {
                return Some(Verdict { verb: Verb::Snooze(rest.max(SHORTEST_REST)), in_transaction });
            }
            Ok(Outcome::RetryAfter(rest)) => {
                (rest.max(SHORTEST_REST), format!("the handler wants a retry after {rest:?}"))
            }
            Err(error) => (self.retry.delay(i32::try_from(attempt).unwrap_or(i32::MAX)), error),
        };
        let verb = if self.limit(own_limit).await.is_some_and(|limit| attempt >= limit) {
            tracing::error!(message_id = id, attempt, %error, "the handler failed for the last time");
            Verb::Bury(format!("failed in attempt {attempt}, the last one: {error}"))
        } else {
            tracing::warn!(message_id = id, attempt, ?rest, %error, "the handler failed, and will be called again");
            Verb::RetryAfter(rest)
        };
        Some(Verdict { verb, in_transaction })
    }

    /// What the handler says, or that it took too long: then its token is cancelled, for what it has started elsewhere.
    async fn answer(&self, delivery: Delivery, lost: &CancellationToken) -> Result<Outcome, String> {
        let work = (self.call)(delivery);
        let Some(limit) = self.time_limit else { return work.await };
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
            lost.cancel();
            Err(format!("the handler did not end within its time limit of {limit:?}"))
        })
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

    /// Carries a verdict out; none: the lease was gone before the handler was called. Whether it was still ours.
    async fn finish(&self, ticket: u64, fence: Fence, verdict: Option<Verdict>) -> bool {
        let Some(Verdict { mut verb, in_transaction }) = verdict else {
            self.count(&self.counts.lost, "lost");
            return false;
        };
        if let Verb::Bury(reason) = &mut verb {
            // PostgreSQL rejects NUL in text. Cap the length to keep list pages small.
            *reason = reason.replace('\0', " ").chars().take(10_000).collect();
        }
        let completes = matches!(verb, Verb::Complete);
        let (counter, event) = match verb {
            Verb::RetryAfter(_) => (&self.counts.retried, verb.names().1),
            Verb::Snooze(_) => (&self.counts.snoozed, verb.names().1),
            Verb::Bury(_) => (&self.counts.buried, verb.names().1),
            _ => (&self.counts.completed, verb.names().1),
        };
        match self.settle(&Act::Finish(verb, fence.by(self.worker))).await {
            Some(Answer::Done | Answer::Already) => self.count(counter, event),
            // The message is in no table, and no other consumer can have had it: its handler has completed it in a transaction
            // of its own.
            Some(Answer::Unknown) if in_transaction.is_completed() || completes && self.keeper.holds(ticket) => {
                self.count(&self.counts.completed, "completed");
            }
            _ => {
                self.count(&self.counts.lost, "lost");
                return false;
            }
        }
        true
    }

    fn count(&self, counter: &AtomicU64, event: &'static str) {
        counter.fetch_add(1, Ordering::Relaxed);
        self.observer.count(event, 1);
    }

    /// Asks until the database answers: what a handler has done must not be done again for want of a connection.
    async fn settle(&self, act: &Act) -> Option<Answer> {
        let operation = act.name();
        let mut rest = FIRST_REST;
        loop {
            match self.observer.watch(operation, async { Ok(act.apply(&self.kernel).await?) }).await {
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
                Unit::Message(message) => fences.push(message.fence()),
                Unit::Key(batch) => keys.push((batch.token, UNSEEN)),
            }
        }
        if !fences.is_empty() {
            self.given_back(fences.len(), self.kernel.put_back(&fences).await.map(drop));
        }
        self.release_keys(keys).await;
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
        if !fences.is_empty() {
            self.given_back(fences.len(), self.kernel.release(&fences).await.map(drop));
        }
        self.release_keys(keys).await;
    }

    async fn release_keys(&self, keys: Vec<(i64, i64)>) {
        for (token, seen) in keys {
            self.given_back(1, self.kernel.key_release(token, Duration::ZERO, Some(seen)).await.map(drop));
        }
    }

    fn given_back(&self, count: usize, result: tenure_store::Result<()>) {
        match result {
            Ok(()) => {
                self.counts.released.fetch_add(count as u64, Ordering::Relaxed);
                self.observer.count("released", count);
            }
            Err(error) => {
                tracing::warn!(%error, "could not release messages; they become available when their leases expire");
            }
        }
    }
}

/// What the loop asks of the database for one message, or for one key.
enum Act {
    Finish(Verb, Fence),
    /// Token, rest, and the last position that the handler was given.
    ReleaseKey(i64, Duration, i64),
}

impl Act {
    fn name(&self) -> &'static str {
        match self {
            Act::Finish(verb, _) => verb.names().0,
            Act::ReleaseKey(..) => "release_key",
        }
    }

    async fn apply(&self, kernel: &tenure_store::Store) -> tenure_store::Result<Answer> {
        match self {
            Act::Finish(verb, fence) => Ok(verb.apply(kernel, &[*fence]).await?[0]),
            Act::ReleaseKey(token, rest, seen) => kernel.key_release(*token, *rest, Some(*seen)).await,
        }
    }
}
