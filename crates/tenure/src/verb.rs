//! How a message leaves its consumer's hands.

use std::time::Duration;

use tenure_store::{Answer, Due, Fence, Place, Result, Store};

/// What is done with a leased message.
#[derive(Clone, Debug)]
pub(crate) enum Verb {
    /// Done, and kept as long as the queue wants.
    Complete,
    /// Done, and not kept.
    Discard,
    /// Visible again at once.
    Release,
    /// Visible again later, at its place.
    RetryAfter(Duration),
    /// The same, and the delivery does not count as an attempt.
    Snooze(Duration),
    /// Dead, for a reason.
    Bury(String),
}

impl Verb {
    /// The operation and the event that `observe` counts.
    pub(crate) fn names(&self) -> (&'static str, &'static str) {
        match self {
            Verb::Complete => ("complete", "completed"),
            Verb::Discard => ("delete", "completed"),
            Verb::Release => ("release", "released"),
            Verb::RetryAfter(_) => ("retry", "retried"),
            Verb::Snooze(_) => ("snooze", "snoozed"),
            Verb::Bury(_) => ("bury", "buried"),
        }
    }

    /// How long the message rests before it is delivered again.
    pub(crate) fn delay(&self) -> Option<Duration> {
        match self {
            Verb::RetryAfter(delay) | Verb::Snooze(delay) => Some(*delay),
            _ => None,
        }
    }

    pub(crate) async fn apply(&self, kernel: &Store, fences: &[Fence]) -> Result<Vec<Answer>> {
        match self {
            Verb::Complete => kernel.complete(fences).await,
            Verb::Discard => kernel.discard(fences).await,
            Verb::Release => kernel.release(fences).await,
            Verb::RetryAfter(rest) => kernel.retry(fences, Some(Due::In(*rest)), Place::Keep).await,
            Verb::Snooze(rest) => kernel.snooze(fences, *rest).await,
            Verb::Bury(reason) => kernel.bury(fences, reason).await,
        }
    }
}
