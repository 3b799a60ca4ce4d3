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
use crate::types::QueueMessage;
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
    pub(super) counts: Counts,
    /// Cancelled when the loop was told to stop: no further message is handed out.
    pub(super) stopping: CancellationToken,
}

/// Below every position: no message of a key was handed out.
const UNSEEN: i64 = i64::MIN;

impl Work {
    /// Puts what was just leased under the keeper's care.
    pub(super) fn register(&self, units: Vec<Unit>) -> Vec<(u64, Unit)> {
        let keep = |unit: Unit| {
            let (what, asked) = match &unit {
                Unit::Message(message) => (Leased::Message(message.fence()), message.asked_at()),
                Unit::Key(batch) => (Leased::Key { token: batch.token, seen: UNSEEN }, batch.asked_at()),
            };
            (self.keeper.add(what, asked.into()), unit)
        };
        units.into_iter().map(keep).collect()
    }

    pub(super) async fn handle(self: Arc<Self>, ticket: u64, unit: Unit) {
        match unit {
            Unit::Message(message) => {
                let fence = message.fence();
                let verdict = self.deliver(ticket, message).await;
                self.finish(fence, verdict).await;
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
                Some(Verb::RetryAfter(delay)) => {
                    // In place, with the key at rest: nothing of this key overtakes it.
                    (seen, rest) = (fence.id, delay);
                    self.count(&self.counts.retried, "retried");
                    break;
                }
                verdict => {
                    if !self.finish(fence, verdict).await {
                        break;
                    }
                    seen = fence.id;
                }
            }
        }
        self.settle(&Act::ReleaseKey(batch.token, rest, seen)).await;
    }

    /// Calls the handler and decides what its answer means for this message.
    async fn deliver(&self, ticket: u64, message: tenure_store::Message) -> Option<Verb> {
        let lost = self.keeper.hand_out(ticket, message.id)?;
        self.observer.count("delivered", 1);
        let limit = message.max_attempts.or(self.queue.settings.max_attempts.map(i64::from));
        let attempt = message.attempts;
        let message = QueueMessage::leased(self.queue.id, message);
        let id = message.id;
        let verb = match (self.call)(Delivery { message, lost }).await {
            Ok(Outcome::Complete) => Verb::Complete,
            Ok(Outcome::Bury(reason)) => Verb::Bury(reason),
            Ok(Outcome::RetryAfter(rest)) => Verb::RetryAfter(rest.max(Duration::from_millis(1))),
            Err(error) if limit.is_some_and(|limit| attempt >= limit) => {
                tracing::error!(message = id, attempt, %error, "the handler failed for the last time");
                Verb::Bury(format!("failed in attempt {attempt}, the last one: {error}"))
            }
            Err(error) => {
                let rest = self.retry.delay(i32::try_from(attempt).unwrap_or(i32::MAX));
                tracing::warn!(message = id, attempt, ?rest, %error, "the handler failed, and will be called again");
                Verb::RetryAfter(rest)
            }
        };
        Some(verb)
    }

    /// Carries a verdict out; none: the lease was gone before the handler was called. Whether it was still ours.
    async fn finish(&self, fence: Fence, verdict: Option<Verb>) -> bool {
        let Some(mut verb) = verdict else {
            self.count(&self.counts.lost, "lost");
            return false;
        };
        if let Verb::Bury(reason) = &mut verb {
            // Databases store no NUL in a text, and nobody reads a novel.
            *reason = reason.replace('\0', " ").chars().take(10_000).collect();
        }
        let counter = match verb {
            Verb::RetryAfter(_) => &self.counts.retried,
            Verb::Bury(_) => &self.counts.buried,
            _ => &self.counts.completed,
        };
        let event = verb.names().1;
        let answer = self.settle(&Act::Finish(verb, fence.by(self.worker))).await;
        let ours = matches!(answer, Some(Answer::Done | Answer::Already));
        match ours {
            true => self.count(counter, event),
            false => self.count(&self.counts.lost, "lost"),
        }
        ours
    }

    fn count(&self, counter: &AtomicU64, event: &'static str) {
        counter.fetch_add(1, Ordering::Relaxed);
        self.observer.count(event, 1);
    }

    /// Asks until the database answers: what a handler has done must not be done again for want of a connection.
    async fn settle(&self, act: &Act) -> Option<Answer> {
        let operation = act.name();
        let mut rest = Duration::from_millis(100);
        loop {
            match self.observer.watch(operation, async { Ok(act.apply(&self.kernel).await?) }).await {
                Ok(answer) => return Some(answer),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, operation, "cannot finish a message, and will try again");
                    tokio::time::sleep(jittered(rest)).await;
                    rest = (rest * 2).min(Duration::from_secs(2));
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
