//! Claims of keys: each leases one key of some lanes, with its first messages.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::clock::Moved;
use crate::error::{Kind, Result};
use crate::ops::key::KeyLook;
use crate::store::Shared;
use crate::types::KeyBatch;
use crate::wait::hub::Hub;
use crate::wait::lease::{Held, Lease, Leased};
use crate::wait::waiters::{Round, Topic, Waiters};

/// How many callers are looked for at the same time: each look is a transaction of its own, so that two processes that want the
/// same keys never wait for each other's.
const TOGETHER: usize = 4;

/// The keys of some lanes.
pub(crate) struct Keys {
    lanes: Vec<i64>,
    /// When a key may be free that was not at the last look.
    next: Mutex<Option<Instant>>,
    clock_moved: Mutex<Moved>,
}

/// For how long and for which worker a key is leased.
pub(crate) type KeyTerms = (Option<Duration>, Option<i64>);

impl Keys {
    pub(crate) fn of(hub: &Hub, lanes: &[i64]) -> Arc<Waiters<Self>> {
        let clock_moved = Mutex::new(hub.clock.watch());
        let waiters = Waiters::new(Keys { lanes: lanes.to_vec(), next: Mutex::default(), clock_moved });
        for lane in lanes {
            hub.lane(*lane).state().key_claims.add(&waiters);
        }
        waiters
    }
}

impl Topic for Keys {
    type Home = Shared;
    type Want = KeyTerms;
    type Answer = Result<Option<Lease<Held<KeyBatch>>>>;

    async fn look(&self, shared: &Arc<Shared>, round: &mut Round<'_, Self>) -> bool {
        let wants: Vec<KeyTerms> = round.asked.iter().map(|asked| asked.want).collect();
        let look = |n: usize| {
            let (lease, worker) = wants[n];
            async move { (n, shared.claim_free_key(&self.lanes, lease, worker).await) }
        };
        let mut left: Vec<usize> = (0..wants.len()).rev().collect();
        let mut running: FuturesUnordered<_> = (0..TOGETHER).filter_map(|_| left.pop()).map(look).collect();
        let mut next: Option<Instant> = None;
        while let Some((n, found)) = running.next().await {
            let worker = wants[n].1;
            match found {
                Ok(KeyLook::Held(batch)) => {
                    round.answer(n, Ok(Some(Held::lease(shared, batch))));
                    round.send();
                }
                Ok(KeyLook::Empty(free)) => {
                    next = next.into_iter().chain(free.map(|free| Instant::now() + free)).min();
                    // Its other claims would find nothing either; those of other workers may find out that theirs was stopped.
                    left.retain(|other| wants[*other].1 != worker);
                }
                Err(error) if error.kind() == Kind::WorkerStopped => round.answer(n, Err(error)),
                Err(error) => {
                    round.fail(&error);
                    left.clear();
                }
            }
            running.extend(left.pop().map(look));
        }
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = next;
        false
    }

    async fn rest(&self, shared: &Arc<Shared>) -> Result<()> {
        let _waiting = shared.hub.wait();
        let poll = Instant::now() + shared.hub.poll_interval();
        let next = *self.next.lock().unwrap_or_else(PoisonError::into_inner);
        tokio::select! {
            () = tokio::time::sleep_until(next.map_or(poll, |next| next.min(poll))) => {}
            () = Moved::keep(&self.clock_moved) => {}
        }
        Ok(())
    }
}

impl Leased for Held<KeyBatch> {
    async fn release(self) {
        if let Err(error) = self.shared.release_key(self.it.token).await {
            tracing::warn!(%error, "could not release a key whose caller has gone; it becomes available when its lease expires");
        }
    }
}
