//! A parked claim offers to take the next message in the enqueue's own commit: one round trip from producer to consumer
//! instead of two, which is the whole of an idle pickup (1.4 ms to 0.7 ms, docs/adr/0006).
//!
//! Invariants: an offer decides nothing about order, the statement still leases nothing past a message that is ready
//! from the cursor on; a message leased for a claim that has meanwhile been served is given back at once, uncounted; an
//! enqueue whose caller goes away still delivers what it leased.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::claimer::Handed;
use crate::cursor::{Leased, Scan};
use crate::error::{Error, Kind, Result};
use crate::ops::claim::Terms;
use crate::ops::enqueue::{Entry, enqueue_leased};
use crate::receipt::Return;
use crate::store::Shared;
use crate::types::Enqueued;
use crate::wake::Lane;

/// What a parked claimer would take: one message on the terms of each claim that waits, in order.
pub(crate) struct Offer {
    terms: Mutex<VecDeque<Terms>>,
    hands: mpsc::UnboundedSender<Handed>,
}

impl Offer {
    /// Places an offer in lanes, in front of any that stands there.
    pub(crate) fn publish(
        terms: VecDeque<Terms>,
        hands: mpsc::UnboundedSender<Handed>,
        lanes: &[Arc<Lane>],
    ) -> Arc<Self> {
        let offer = Arc::new(Offer { terms: Mutex::new(terms), hands });
        for lane in lanes {
            lane.state().offer = Some(offer.clone());
        }
        offer
    }

    /// Ends the offer. Messages taken under it before may still arrive.
    pub(crate) fn withdraw(self: &Arc<Self>, lanes: &[Arc<Lane>]) {
        self.terms().clear();
        for lane in lanes {
            let offer = &mut lane.state().offer;
            if offer.as_ref().is_some_and(|offer| Arc::ptr_eq(offer, self)) {
                *offer = None;
            }
        }
    }

    fn terms(&self) -> MutexGuard<'_, VecDeque<Terms>> {
        self.terms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Enqueues a message into the hands of a parked claim; none when no claim offers, or when its lane wants a full
    /// look first, at what is due or expired.
    pub(crate) async fn enqueue_offered(self: &Arc<Self>, entry: &Entry) -> Option<Result<Enqueued>> {
        if !entry.is_plain() || entry.message.key.is_some() {
            return None;
        }
        let lane = self.hub.lane(entry.lane);
        // Begins before the offer is taken: when the claimer has forgotten a claim, all messages for it are counted.
        let returning = self.returns.begin();
        let (offer, terms, scan) = {
            let mut state = lane.state();
            let now = self.hub.steady();
            let offer = state.offer.clone()?;
            let looked = !state.cursor.is_full_due(now) && state.due_known_until > now;
            if !looked || state.due.is_some_and(|due| due <= now) {
                return None;
            }
            let terms = offer.terms().pop_front()?;
            (offer, terms, state.cursor.begin(now))
        };
        // A task of its own: what it leases must reach somebody even when the producer goes away.
        let task = tokio::spawn(self.clone().hand_over(entry.clone(), lane, offer, (terms, returning), scan));
        let closed = |error| Err(Error::new(Kind::Closed, "the store was closed").with_source(error));
        Some(task.await.unwrap_or_else(closed))
    }

    async fn hand_over(
        self: Arc<Self>,
        entry: Entry,
        lane: Arc<Lane>,
        offer: Arc<Offer>,
        (terms, task): (Terms, Return),
        scan: Scan,
    ) -> Result<Enqueued> {
        let hub = &self.hub;
        let (clock, from, Terms { lease, worker }) = (hub.clock.clone(), scan.from, terms);
        let act = hub.db.write(move |conn| {
            Box::pin(async move { enqueue_leased(conn, &clock, &entry, from, lease, worker).await })
        });
        let result = act.await;
        {
            let mut state = lane.state();
            let message = result.as_ref().ok().and_then(|(_, message)| message.as_ref());
            let leased = message.map(|message| Leased {
                first: message.id,
                last: message.id,
                stopped: false,
                deadline: hub.deadline(&state, lease, message.leased_until),
            });
            state.cursor.end(&scan, leased);
            if result.is_err() {
                state.cursor.rewind();
            }
        }
        let (enqueued, message) = result?;
        match message {
            None => hub.ready(lane.id, enqueued.id),
            Some(message) => {
                if let Err(mpsc::error::SendError(handed)) = offer.hands.send(Handed { terms, message, task }) {
                    self.give_back(vec![handed.message], handed.task);
                }
            }
        }
        Ok(enqueued)
    }
}
