//! A message for a waiting claim of this process is leased in the enqueue's own commit: one round trip from producer to
//! consumer instead of two, which is the whole of an idle pickup (1.4 ms to 0.7 ms, docs/adr/0006).
//!
//! Invariants: this decides nothing about order, the statement still leases nothing past a message that is ready from the
//! cursor on; a message leased for a claim that has meanwhile been answered is released uncounted; an enqueue whose caller goes
//! away still delivers what it leased.

use std::sync::Arc;

use crate::error::{Error, Kind, Result};
use crate::ops::enqueue::{Entry, enqueue_leased};
use crate::store::Shared;
use crate::types::Enqueued;
use crate::wait::cursor::{Scan, Scanned};
use crate::wait::hub::Lane;
use crate::wait::lease::{Held, Return};
use crate::wait::messages::{Messages, Room};
use crate::wait::waiters::Waiters;

/// The claim for which an enqueue leases its message.
struct Promise {
    waiters: Arc<Waiters<Messages>>,
    number: u64,
    room: Room,
    /// Counted from before the claim was chosen, so that a wait for the leases of claims that have gone includes this one.
    _counted: Return,
}

impl Shared {
    /// Enqueues a message and leases it for a waiting claim; none when no claim is parked, or when its lane wants a full
    /// look first, at what is due or expired.
    pub(crate) async fn enqueue_offered(self: &Arc<Self>, entry: &Entry) -> Option<Result<Enqueued>> {
        if !entry.is_plain() || entry.message.key.is_some() {
            return None;
        }
        let lane = self.hub.lane(entry.lane);
        let (promise, scan) = {
            let mut state = lane.state();
            let now = self.hub.steady();
            let looked = !state.cursor.is_full_due(now) && state.due_known_until > now;
            if !looked || state.due.is_some_and(|due| due <= now) || state.claims.live().next().is_none() {
                return None;
            }
            let _counted = self.returns.begin();
            let promised = |waiters: Arc<Waiters<Messages>>| waiters.promise().map(|promised| (waiters, promised));
            let (waiters, (number, room)) = state.claims.live().find_map(promised)?;
            (Promise { waiters, number, room, _counted }, state.cursor.begin(now))
        };
        // A task of its own: what it leases must reach a claim even when the producer goes away.
        let task = tokio::spawn(self.clone().enqueue_for(entry.clone(), lane, promise, scan));
        let closed = |error| Err(Error::new(Kind::Closed, "the store was closed").with_source(error));
        Some(task.await.unwrap_or_else(closed))
    }

    async fn enqueue_for(
        self: Arc<Self>,
        entry: Entry,
        lane: Arc<Lane>,
        promise: Promise,
        scan: Scan,
    ) -> Result<Enqueued> {
        let hub = &self.hub;
        let Promise { waiters, number, room: (terms, _), _counted } = promise;
        let (clock, from) = (hub.clock.clone(), scan.from);
        let act = hub.db.write(move |conn| {
            Box::pin(async move { enqueue_leased(conn, &clock, &entry, from, terms.lease, terms.worker).await })
        });
        let result = act.await;
        {
            let mut state = lane.state();
            let message = result.as_ref().ok().and_then(|(_, message)| message.as_ref());
            let scanned = message.map(|message| Scanned {
                first: message.id,
                last: message.id,
                stopped: false,
                deadline: hub.deadline(&state, terms.lease, message.leased_until),
            });
            state.cursor.end(&scan, scanned);
            if result.is_err() {
                state.cursor.rewind();
            }
        }
        match result {
            Ok((enqueued, Some(message))) => {
                let lease = Held::lease(&self, vec![message]);
                waiters.deliver(number, |(other, _)| *other == terms, Ok(Some(lease)));
                Ok(enqueued)
            }
            other => {
                waiters.take_back(number);
                let (enqueued, _) = other?;
                hub.ready(lane.id, enqueued.id);
                Ok(enqueued)
            }
        }
    }
}
