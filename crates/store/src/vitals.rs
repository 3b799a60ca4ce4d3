//! How a store is doing, for whoever watches it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::Store;

/// Slots of a [`Sizes`].
pub const SIZES: usize = 12;

/// How large merged batches were, since the store was opened: slot n counts those of at most 2^n messages, the last one
/// everything larger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Batches.
    pub batches: [u64; SIZES],
    /// Messages in all of them.
    pub messages: u64,
}

/// How a store is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Connections that are open.
    pub connections: usize,
    /// Those of them that nobody uses.
    pub idle: usize,
    /// Batches of enqueued messages.
    pub enqueued: Sizes,
    /// Batches of claimed messages; a look that found nothing is not one.
    pub claimed: Sizes,
    /// Batches of verbs.
    pub finished: Sizes,
}

/// Counts batches by their size.
#[derive(Default)]
pub(crate) struct Tally {
    batches: [AtomicU64; SIZES],
    messages: AtomicU64,
}

impl Tally {
    pub(crate) fn add(&self, messages: usize) {
        if messages > 0 {
            let slot = (usize::BITS - (messages - 1).leading_zeros()) as usize;
            self.batches[slot.min(SIZES - 1)].fetch_add(1, Ordering::Relaxed);
            self.messages.fetch_add(messages as u64, Ordering::Relaxed);
        }
    }

    fn read(&self) -> Sizes {
        let batches = std::array::from_fn(|n| self.batches[n].load(Ordering::Relaxed));
        Sizes { batches, messages: self.messages.load(Ordering::Relaxed) }
    }
}

/// The batches of a store.
#[derive(Default)]
pub(crate) struct Tallies {
    pub(crate) enqueued: Tally,
    pub(crate) claimed: Tally,
    pub(crate) finished: Tally,
}

impl Store {
    /// How this store is doing, without asking the database.
    pub fn vitals(&self) -> Vitals {
        let (connections, idle) = self.db().connections();
        let tallies = &self.shared().tallies;
        Vitals {
            connections,
            idle,
            enqueued: tallies.enqueued.read(),
            claimed: tallies.claimed.read(),
            finished: tallies.finished.read(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_counted_by_powers_of_two() {
        let tally = Tally::default();
        for size in [0, 1, 2, 3, 4, 5, 1024, 1025, 1_000_000] {
            tally.add(size);
        }
        assert_eq!(tally.read().batches, [1, 1, 2, 1, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(tally.read().messages, 1_002_064);
    }
}
