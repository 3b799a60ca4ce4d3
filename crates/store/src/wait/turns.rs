//! Fetches of turns: those that ask for the same versions share a statement.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::error::Result;
use crate::sql::TURN_NEXT;
use crate::store::Shared;
use crate::types::{Known, Turn};
use crate::wait::lease::{Held, Lease, Leased};
use crate::wait::times::Times;
use crate::wait::waiters::{Round, Topic};

/// Turns of every instance.
pub(crate) struct Turns {
    pub(crate) times: Times,
}

impl Turns {
    pub(crate) fn new(clock: &Clock) -> Self {
        Turns { times: Times::new(clock.watch()) }
    }
}

/// A fetch: for how long it leases, the versions that it can run, and the histories that need not be sent again.
#[derive(Clone)]
pub(crate) struct TurnWant {
    pub(crate) lease: Duration,
    pub(crate) pinned: Option<(i64, i64)>,
    pub(crate) known: Arc<dyn Fn() -> Vec<Known> + Send + Sync>,
}

impl Topic for Turns {
    type Home = Shared;
    type Want = TurnWant;
    type Answer = Result<Option<Lease<Held<Turn>>>>;

    async fn look(&self, shared: &Arc<Shared>, round: &mut Round<'_, Self>) -> bool {
        self.times.look_begins();
        let wants: Vec<TurnWant> = round.asked.iter().map(|asked| asked.want.clone()).collect();
        let mut left: Vec<usize> = (0..wants.len()).collect();
        while let Some(first) = left.first().map(|n| &wants[*n]) {
            let same = |n: &usize| (wants[*n].lease, wants[*n].pinned) == (first.lease, first.pinned);
            let (alike, others): (Vec<usize>, Vec<usize>) = left.iter().partition(|n| same(n));
            match shared.take_turns(first, alike.len()).await {
                Ok(turns) => {
                    for (n, turn) in alike.into_iter().zip(turns) {
                        self.times.found();
                        round.answer(n, Ok(Some(Held::lease(shared, turn))));
                    }
                    round.send();
                }
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
        self.times.rest(&shared.hub, |since| shared.next(TURN_NEXT, since)).await
    }

    fn alike(one: &TurnWant, other: &TurnWant) -> bool {
        one.pinned == other.pinned
    }
}

impl Leased for Held<Turn> {
    async fn release(self) {
        if let Err(error) = self.shared.abandon_turn(&self.it.token, None, true).await {
            tracing::debug!(%error, "could not release a turn whose caller has gone; its lease will expire");
        }
    }
}
