//! Fetches of activities: those that ask for the same share a statement, unless activities of sessions wait, which only the
//! owner of a session may take.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Clock;
use crate::error::Result;
use crate::sql::WORK_NEXT;
use crate::store::Shared;
use crate::types::{Work, WorkClaim};
use crate::wait::hub::Hub;
use crate::wait::lease::{Held, Lease, Leased};
use crate::wait::times::Times;
use crate::wait::waiters::{Round, Topic};

/// How long before a fetch began its wait may have been ended. A worker's decision to fetch without sessions is a moment older
/// than its fetch, and the capacity may have become free in between.
const ENDED_BEFORE: Duration = Duration::from_millis(10);

/// Activities of every kind.
pub(crate) struct Activities {
    pub(crate) times: Times,
    /// When the waits of fetches without sessions were last ended.
    ended: Mutex<Option<Instant>>,
}

impl Activities {
    pub(crate) fn new(clock: &Clock) -> Self {
        Activities { times: Times::new(clock.watch()), ended: Mutex::default() }
    }

    /// Ends the waits of fetches without sessions. A runtime whose sessions are all in use fetches so, and asks for sessions again
    /// only with its next fetch.
    pub(crate) fn end_waits_without_sessions(&self, hub: &Hub) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        hub.work.end_waits(|claim| claim.session.is_none());
    }

    fn hand_out(&self, shared: &Arc<Shared>, round: &mut Round<'_, Self>, alike: &[usize], work: Vec<Work>) {
        let mut work = work.into_iter();
        for n in alike {
            let work = work.next();
            let asked = &round.asked[*n];
            if asked.first && asked.want.session.is_some() && !work.as_ref().is_some_and(|work| work.in_session) {
                self.end_waits_without_sessions(&shared.hub);
            }
            if let Some(work) = work {
                self.times.found();
                round.answer(*n, Ok(Some(Held::lease(shared, work))));
            }
        }
        round.send();
    }

    /// Until when a fetch without sessions waits that would wait until then: it only looks once if such waits were ended just now.
    pub(crate) fn patience(&self, claim: &WorkClaim, until: Instant) -> Instant {
        let ended = *self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match ended {
            Some(ended) if claim.session.is_none() && ended + ENDED_BEFORE > now => now,
            _ => until,
        }
    }
}

impl Topic for Activities {
    type Home = Shared;
    type Want = WorkClaim;
    type Answer = Result<Option<Lease<Held<Work>>>>;

    async fn look(&self, shared: &Arc<Shared>, round: &mut Round<'_, Self>) -> bool {
        self.times.look_begins();
        let wants: Vec<WorkClaim> = round.asked.iter().map(|asked| asked.want.clone()).collect();
        let mut left: Vec<usize> = (0..wants.len()).collect();
        while let Some(first) = left.first().copied() {
            let apart = wants.len() == 1 || shared.hub.sessions.load(Ordering::Relaxed);
            let claim = &wants[first];
            let same = |n: &usize| (wants[*n].lease, &wants[*n].filter) == (claim.lease, &claim.filter);
            let (alike, others): (Vec<usize>, Vec<usize>) =
                left.iter().partition(|n| if apart { **n == first } else { same(n) });
            let free = WorkClaim { session: None, ..claim.clone() };
            match shared.take_work(if apart { claim } else { &free }, alike.len()).await {
                Ok(work) => self.hand_out(shared, round, &alike, work),
                Err(error) => {
                    round.fail(&error);
                    return false;
                }
            }
            left = others;
        }
        false
    }

    async fn rest(&self, shared: &Arc<Shared>) -> Result<()> {
        self.times.rest(&shared.hub, |since| shared.next(WORK_NEXT, since)).await
    }

    fn alike(one: &WorkClaim, other: &WorkClaim) -> bool {
        one.filter == other.filter && one.session.is_some() == other.session.is_some()
    }
}

impl Leased for Held<Work> {
    async fn release(self) {
        if let Err(error) = self.shared.abandon_work(self.it.token, None, true).await {
            tracing::debug!(%error, "could not release an activity whose caller has gone; its lease will expire");
        }
    }
}
