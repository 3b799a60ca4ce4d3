//! Activities that were leased for workers on their way.
//!
//! A worker that ends an activity comes back for the next one at once, and most of what a claim costs is the statement and
//! not the row: so the next activity is leased in the commit that ends the last one, and waits here for some microseconds.
//! Invariants: no more are kept than workers are coming; only under long leases, so that the wait is nothing to them; only
//! activities without a session; in order; an activity that no worker fetches within [`KEPT`] is released uncounted.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::types::WorkClaim;

/// How long an activity is kept for a worker.
pub(crate) const KEPT: Duration = Duration::from_millis(10);
/// Shorter leases are not shortened further.
const LEAST_LEASE: Duration = Duration::from_secs(5);

/// What is kept, oldest first. `L` is a lease, which is released when it is dropped.
pub(crate) struct Prefetch<L>(Mutex<VecDeque<Kept<L>>>);

struct Kept<L> {
    since: Instant,
    claim: WorkClaim,
    lease: L,
}

fn same(one: &WorkClaim, other: &WorkClaim) -> bool {
    one.lease == other.lease && one.filter == other.filter
}

impl<L> Default for Prefetch<L> {
    fn default() -> Self {
        Prefetch(Mutex::default())
    }
}

impl<L> Prefetch<L> {
    fn kept(&self) -> MutexGuard<'_, VecDeque<Kept<L>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is kept for such a claim.
    pub(crate) fn take(&self, claim: &WorkClaim) -> Option<L> {
        let mut kept = self.kept();
        let at = kept.iter().position(|kept| same(&kept.claim, claim))?;
        kept.remove(at).map(|kept| kept.lease)
    }

    /// How many to lease for so many workers that will ask for such a claim.
    pub(crate) fn room(&self, claim: &WorkClaim, workers: usize) -> usize {
        if claim.lease < LEAST_LEASE {
            return 0;
        }
        workers.saturating_sub(self.kept().iter().filter(|kept| same(&kept.claim, claim)).count())
    }

    pub(crate) fn put(&self, claim: &WorkClaim, leases: impl Iterator<Item = L>) {
        let since = Instant::now();
        self.kept().extend(leases.map(|lease| Kept { since, claim: claim.clone(), lease }));
    }

    /// What was kept for longer than `age`.
    pub(crate) fn stale(&self, age: Duration) -> Vec<L> {
        let mut kept = self.kept();
        let mut stale = Vec::new();
        while kept.front().is_some_and(|kept| kept.since.elapsed() >= age) {
            stale.extend(kept.pop_front().map(|kept| kept.lease));
        }
        stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::WorkFilter;

    #[test]
    fn what_is_kept_goes_in_order_to_those_who_ask_for_the_same() {
        let kept = Prefetch::default();
        let claim = WorkClaim { lease: Duration::from_secs(30), ..WorkClaim::default() };
        kept.put(&claim, [1, 2].into_iter());
        let other = WorkClaim { filter: WorkFilter { any: true, ..WorkFilter::default() }, ..claim.clone() };
        assert_eq!(kept.take(&other), None);
        assert_eq!((kept.room(&claim, 3), kept.room(&other, 3)), (1, 3));
        assert_eq!(kept.take(&claim), Some(1));
        assert_eq!(kept.stale(Duration::ZERO), [2]);
        assert_eq!(kept.take(&claim), None);
    }

    #[test]
    fn nothing_is_leased_ahead_under_a_short_lease() {
        let claim = WorkClaim { lease: Duration::from_secs(1), ..WorkClaim::default() };
        assert_eq!(Prefetch::<i64>::default().room(&claim, 8), 0);
    }
}
