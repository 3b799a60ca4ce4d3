//! Keeps leases while their handlers work.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tenure_store::Fence;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

#[derive(Clone, Copy)]
pub(super) enum Leased {
    Message(Fence),
    Key {
        token: i64,
        /// The position of the last message that the handler was given.
        seen: i64,
    },
}

/// Extends the leases of a loop, and tells handlers whose lease cannot be kept.
pub(super) struct Keeper {
    kernel: tenure_store::Store,
    lease: Duration,
    leases: Mutex<HashMap<u64, Kept>>,
    next: AtomicU64,
}

struct Kept {
    what: Leased,
    /// When the lease ends at the earliest by our own clock, counted from the moment at which the claim was sent: its answer
    /// may come late (6 s after the lease began, while the database was frozen).
    until: Instant,
    lost: CancellationToken,
}

impl Keeper {
    pub(super) fn new(kernel: &tenure_store::Store, lease: Duration) -> Self {
        Keeper { kernel: kernel.clone(), lease, leases: Mutex::default(), next: AtomicU64::new(0) }
    }

    fn leases(&self) -> MutexGuard<'_, HashMap<u64, Kept>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a lease that was asked for at this moment.
    pub(super) fn add(&self, what: Leased, asked: Instant) -> u64 {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let kept = Kept { what, until: asked + self.lease, lost: CancellationToken::new() };
        self.leases().insert(ticket, kept);
        ticket
    }

    /// Notes that the handler is given the message of a key at this position, and the token that tells it of a lost lease;
    /// none: the lease is lost.
    pub(super) fn hand_out(&self, ticket: u64, position: i64) -> Option<CancellationToken> {
        let mut leases = self.leases();
        let late = Instant::now() + self.margin();
        let kept = leases.get_mut(&ticket).filter(|kept| !kept.lost.is_cancelled() && kept.until > late)?;
        if let Leased::Key { seen, .. } = &mut kept.what {
            *seen = position;
        }
        Some(kept.lost.clone())
    }

    pub(super) fn remove(&self, ticket: u64) {
        self.leases().remove(&ticket);
    }

    pub(super) fn lose_all(&self) {
        for kept in self.leases().values() {
            kept.lost.cancel();
        }
    }

    pub(super) fn take_all(&self) -> Vec<Leased> {
        self.leases().drain().map(|(_, kept)| kept.what).collect()
    }

    /// A lease with less than this left is given up: it may end before the next look, and clocks drift.
    fn margin(&self) -> Duration {
        self.lease / 4
    }

    /// Looks eight times in a lease: extends by half a lease what has less than five eighths of one left, and gives up what
    /// has less than a quarter. A look never waits for an extension, so that handlers are told in time.
    pub(super) async fn run(self: Arc<Self>) {
        let tick = self.lease / 8;
        let mut extension: Option<BoxFuture<'_, ()>> = None;
        loop {
            let next = Instant::now() + tick;
            let due = self.look();
            if extension.is_none() && !due.is_empty() {
                extension = Some(self.extend_in_time(due, 2 * tick).boxed());
            }
            while let Some(extending) = &mut extension
                && tokio::time::timeout_at(next, extending).await.is_ok()
            {
                extension = None;
            }
            tokio::time::sleep_until(next).await;
        }
    }

    /// Gives up leases that may end before the next look; those that must be extended.
    fn look(&self) -> Vec<(u64, Leased)> {
        let now = Instant::now();
        let mut due = Vec::new();
        for (ticket, kept) in self.leases().iter().filter(|(_, kept)| !kept.lost.is_cancelled()) {
            if kept.until <= now + self.margin() {
                kept.lost.cancel();
            } else if kept.until <= now + self.lease * 5 / 8 {
                due.push((*ticket, kept.what));
            }
        }
        due
    }

    async fn extend_in_time(&self, due: Vec<(u64, Leased)>, limit: Duration) {
        if tokio::time::timeout(limit, self.extend(&due)).await.is_err() {
            tracing::warn!(leases = due.len(), "could not extend leases in time; trying again");
        }
    }

    async fn extend(&self, due: &[(u64, Leased)]) {
        let extra = self.lease / 2;
        let asked = Instant::now();
        let (mut messages, mut keys) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for (ticket, what) in due {
            match what {
                Leased::Message(fence) => {
                    messages.0.push(*ticket);
                    messages.1.push(*fence);
                }
                Leased::Key { token, .. } => {
                    keys.0.push(*ticket);
                    keys.1.push(*token);
                }
            }
        }
        let (messages_until, keys_until) =
            tokio::join!(self.kernel.extend(&messages.1, extra), self.kernel.key_extend(&keys.1, extra));
        for (tickets, until) in [(messages.0, messages_until), (keys.0, keys_until)] {
            match until {
                Ok(until) => {
                    for (ticket, until) in tickets.iter().zip(until) {
                        self.extended(*ticket, until.is_some(), asked, extra);
                    }
                }
                Err(error) => tracing::warn!(%error, "could not extend leases; trying again"),
            }
        }
    }

    fn extended(&self, ticket: u64, held: bool, asked: Instant, extra: Duration) {
        if let Some(kept) = self.leases().get_mut(&ticket) {
            match held {
                true => kept.until = kept.until.max(asked) + extra,
                false => kept.lost.cancel(),
            }
        }
    }
}

#[cfg(all(test, feature = "sqlite"))]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(8);

    /// A keeper of one lease of a message that was asked for so many milliseconds ago, and its ticket.
    async fn keeper(asked_before: u64) -> (Keeper, u64) {
        let keeper = Keeper::new(&tenure_store::Store::connect(":memory:").await.unwrap(), LEASE);
        let asked = Instant::now() - Duration::from_millis(asked_before);
        let ticket = keeper.add(Leased::Message(Fence::exact(1, 1)), asked);
        (keeper, ticket)
    }

    #[tokio::test]
    async fn a_lease_is_extended_when_five_eighths_are_left_of_it_and_given_up_at_a_quarter() {
        for (asked_before, extended, lost) in
            [(0, false, false), (2900, false, false), (3100, true, false), (5800, true, false), (6100, false, true)]
        {
            let (keeper, ticket) = keeper(asked_before).await;
            assert_eq!(keeper.hand_out(ticket, 1).is_none(), lost, "asked for {asked_before} ms ago");
            assert_eq!(keeper.look().len() == 1, extended, "asked for {asked_before} ms ago");
            assert_eq!(keeper.leases()[&ticket].lost.is_cancelled(), lost, "asked for {asked_before} ms ago");
        }
    }

    #[tokio::test]
    async fn a_message_is_not_handed_out_under_a_lease_that_was_given_up() {
        let (keeper, ticket) = keeper(0).await;
        keeper.lose_all();
        assert!(keeper.hand_out(ticket, 1).is_none());
        assert!(keeper.look().is_empty());
    }

    #[tokio::test]
    async fn an_extension_counts_from_the_end_of_the_lease_or_from_when_it_was_asked_for() {
        let (keeper, ticket) = keeper(4000).await;
        let until = || keeper.leases()[&ticket].until;
        let (before, asked) = (until(), Instant::now());
        keeper.extended(ticket, true, asked, LEASE / 2);
        assert_eq!(until(), before + LEASE / 2);
        keeper.extended(ticket, true, before + LEASE, LEASE / 2);
        assert_eq!(until(), before + LEASE + LEASE / 2);
        keeper.extended(ticket, false, asked, LEASE / 2);
        assert!(keeper.leases()[&ticket].lost.is_cancelled());
    }
}
