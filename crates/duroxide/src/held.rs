//! The leases that this process holds, and until when it may count on them.
//!
//! An acknowledgement is repeated while its lease lasts, whatever happens to the database. Then it is given up, and for
//! good: duroxide answers a failed acknowledgement by writing down that the orchestration failed, under the same lock, and
//! an outage must never do that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_store::WorkClaim;
use tokio::time::Instant;

use crate::repeat::after;

/// How long an acknowledgement of a lease that this process knows nothing of is repeated.
const UNKNOWN: Duration = Duration::from_secs(5);
/// How long a lease that has run out is remembered.
const REMEMBERED: Duration = Duration::from_secs(120);
/// From how many leases on those that have run out are looked for.
const MANY: usize = 256;

/// Leases by token.
#[derive(Default)]
pub(crate) struct Held(Mutex<HashMap<i64, Lease>>);

#[derive(Clone)]
struct Lease {
    until: Instant,
    /// The last event of the history that came with it.
    last: i64,
    /// What the worker that holds it asked for.
    claim: Option<Arc<WorkClaim>>,
    given_up: bool,
}

impl Held {
    fn leases(&self) -> MutexGuard<'_, HashMap<i64, Lease>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lease was taken; `began` is when it was asked for, which is not later than when it began.
    pub(crate) fn take(&self, token: i64, began: Instant, lease: Duration, last: i64) {
        let mut leases = self.leases();
        if leases.len() >= MANY {
            let now = Instant::now();
            leases.retain(|_, lease| now < lease.until + REMEMBERED);
        }
        leases.insert(token, Lease { until: after(began, lease), last, claim: None, given_up: false });
    }

    /// Remembers what the worker that holds a lease asked for.
    pub(crate) fn claimed(&self, token: i64, claim: Arc<WorkClaim>) {
        if let Some(held) = self.leases().get_mut(&token) {
            held.claim = Some(claim);
        }
    }

    /// What the worker that holds this lease asked for, and will ask for again.
    pub(crate) fn claim(&self, token: i64) -> Option<Arc<WorkClaim>> {
        self.leases().get(&token)?.claim.clone()
    }

    pub(crate) fn renew(&self, token: i64, began: Instant, lease: Duration) {
        if let Some(held) = self.leases().get_mut(&token) {
            held.until = after(began, lease);
        }
    }

    /// Until when to repeat what is done under this lease.
    pub(crate) fn until(&self, token: i64) -> Instant {
        self.leases().get(&token).map_or_else(|| Instant::now() + UNKNOWN, |lease| lease.until)
    }

    /// The last event of the history that came with this lease.
    pub(crate) fn last(&self, token: i64) -> Option<i64> {
        self.leases().get(&token).map(|lease| lease.last)
    }

    pub(crate) fn let_go(&self, token: i64) {
        self.leases().remove(&token);
    }

    /// Nothing is done under this lease any more.
    pub(crate) fn give_up(&self, token: i64) {
        let now = Instant::now();
        self.leases().entry(token).or_insert(Lease { until: now, last: 0, claim: None, given_up: true }).given_up =
            true;
    }

    pub(crate) fn is_given_up(&self, token: i64) -> bool {
        self.leases().get(&token).is_some_and(|lease| lease.given_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_was_given_up_stays_so() {
        let held = Held::default();
        held.take(1, Instant::now(), Duration::from_secs(5), 7);
        assert_eq!((held.last(1), held.is_given_up(1)), (Some(7), false));
        held.give_up(1);
        held.renew(1, Instant::now(), Duration::from_secs(5));
        assert!(held.is_given_up(1));
        held.let_go(1);
        assert_eq!(held.last(1), None);
    }
}
