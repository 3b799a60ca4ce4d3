//! Keeps leases while their handlers work.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_store::Fence;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

#[derive(Clone, Copy)]
pub(super) enum Leased {
    Message(Fence),
    Key(i64),
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
    /// When the lease ends by our own clock, counted from the answer to the claim.
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

    pub(super) fn add(&self, what: Leased) -> u64 {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let kept = Kept { what, until: Instant::now() + self.lease, lost: CancellationToken::new() };
        self.leases().insert(ticket, kept);
        ticket
    }

    pub(super) fn token(&self, ticket: u64) -> Option<CancellationToken> {
        self.leases().get(&ticket).map(|kept| kept.lost.clone())
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

    /// Looks eight times in a lease: extends by half a lease what has less than five eighths of one left, and gives up
    /// what has less than one eighth, which is the margin for slow answers and clocks that drift.
    pub(super) async fn run(self: Arc<Self>) {
        let tick = self.lease / 8;
        loop {
            tokio::time::sleep(tick).await;
            let now = Instant::now();
            let mut due = Vec::new();
            for (ticket, kept) in self.leases().iter() {
                if kept.lost.is_cancelled() {
                    continue;
                }
                if kept.until <= now + tick {
                    kept.lost.cancel();
                } else if kept.until <= now + self.lease * 5 / 8 {
                    due.push((*ticket, kept.what));
                }
            }
            // Not longer than a tick: whoever cannot be extended must be told in time.
            if tokio::time::timeout(tick, self.extend(&due)).await.is_err() {
                tracing::warn!(leases = due.len(), "leases could not be extended in time, and will be tried again");
            }
        }
    }

    async fn extend(&self, due: &[(u64, Leased)]) {
        let extra = self.lease / 2;
        let asked = Instant::now();
        let messages: Vec<(u64, Fence)> = due
            .iter()
            .filter_map(|(ticket, what)| if let Leased::Message(fence) = what { Some((*ticket, *fence)) } else { None })
            .collect();
        if !messages.is_empty() {
            let fences: Vec<Fence> = messages.iter().map(|(_, fence)| *fence).collect();
            match self.kernel.extend(&fences, extra).await {
                Ok(answers) => {
                    for ((ticket, _), until) in messages.iter().zip(answers) {
                        self.extended(*ticket, until.is_some(), asked, extra);
                    }
                }
                Err(error) => tracing::warn!(%error, "leases could not be extended, and will be tried again"),
            }
        }
        for (ticket, what) in due {
            if let Leased::Key(token) = what {
                match self.kernel.key_extend(*token, extra).await {
                    Ok(until) => self.extended(*ticket, until.is_some(), asked, extra),
                    Err(error) => {
                        tracing::warn!(%error, "a key's lease could not be extended, and will be tried again");
                    }
                }
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
