//! Activities that were leased a moment before they are asked for.
//!
//! A worker that has just taken an activity comes back for the next one within a millisecond or two, and most of what a
//! claim costs is the statement and not the row. So while fetches follow each other fast, a claim takes as many as were
//! taken in the last few milliseconds. Invariants: only under long leases, so that the wait is nothing to them; only
//! activities without a session; in order; what nobody comes for is given back uncounted within [`KEPT`].

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::types::{Work, WorkClaim, WorkFilter};

/// How long an activity is kept for a worker.
pub(crate) const KEPT: Duration = Duration::from_millis(25);
/// Fetches of so long ago tell how many will come.
const WINDOW: Duration = Duration::from_millis(10);
/// How many activities one claim takes beyond those that are asked for.
const MOST: usize = 16;
/// Shorter leases are not shortened further.
const LEAST_LEASE: Duration = Duration::from_secs(5);

/// What is kept, oldest first, and when activities were last taken.
#[derive(Default)]
pub(crate) struct Stock(Mutex<State>);

#[derive(Default)]
struct State {
    kept: VecDeque<Kept>,
    taken: VecDeque<Instant>,
}

struct Kept {
    since: Instant,
    lease: Duration,
    filter: WorkFilter,
    work: Work,
}

impl Stock {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is kept for such a claim.
    pub(crate) fn take(&self, claim: &WorkClaim) -> Option<Work> {
        let mut state = self.state();
        if claim.lease >= LEAST_LEASE {
            let now = Instant::now();
            state.taken.push_back(now);
            while state.taken.len() > MOST + 1 || state.taken.front().is_some_and(|at| now - *at > WINDOW) {
                state.taken.pop_front();
            }
        }
        let at = state.kept.iter().position(|kept| kept.lease == claim.lease && kept.filter == claim.filter)?;
        state.kept.remove(at).map(|kept| kept.work)
    }

    /// How many to take beyond those that are asked for: as many as were asked for just before.
    pub(crate) fn extra(&self, lease: Duration) -> usize {
        let state = self.state();
        if lease < LEAST_LEASE || !state.kept.is_empty() { 0 } else { state.taken.len().saturating_sub(1) }
    }

    pub(crate) fn put(&self, claim: &WorkClaim, work: Vec<Work>) {
        let since = Instant::now();
        let kept = |work| Kept { since, lease: claim.lease, filter: claim.filter.clone(), work };
        self.state().kept.extend(work.into_iter().map(kept));
    }

    /// What was kept for longer than `age`.
    pub(crate) fn stale(&self, age: Duration) -> Vec<Work> {
        let mut state = self.state();
        let mut stale = Vec::new();
        while state.kept.front().is_some_and(|kept| kept.since.elapsed() >= age) {
            stale.extend(state.kept.pop_front().map(|kept| kept.work));
        }
        stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::WorkToken;

    fn work(id: i64) -> Work {
        Work { token: WorkToken { id, token: 1 }, attempts: 1, item: String::new(), took: Duration::ZERO }
    }

    #[test]
    fn what_is_kept_goes_in_order_to_those_who_ask_for_the_same() {
        let stock = Stock::default();
        let claim = WorkClaim { lease: Duration::from_secs(30), ..WorkClaim::default() };
        assert_eq!(stock.take(&claim), None);
        stock.put(&claim, vec![work(1), work(2)]);
        let other = WorkClaim { filter: WorkFilter { any: true, ..WorkFilter::default() }, ..claim.clone() };
        assert_eq!(stock.take(&other), None);
        assert_eq!(stock.take(&claim).map(|work| work.token.id), Some(1));
        assert_eq!(stock.stale(Duration::ZERO).len(), 1);
        assert_eq!(stock.take(&claim), None);
    }

    #[test]
    fn the_first_fetch_and_short_leases_take_nothing_extra() {
        let stock = Stock::default();
        let claim = WorkClaim { lease: Duration::from_secs(30), ..WorkClaim::default() };
        stock.take(&claim);
        assert_eq!(stock.extra(claim.lease), 0);
        stock.take(&claim);
        assert_eq!((stock.extra(claim.lease), stock.extra(Duration::from_secs(1))), (1, 0));
    }
}
