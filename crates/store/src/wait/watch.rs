//! For faces that park their callers themselves: when to look into some lanes, and one look.
//!
//! Invariants: what became ready after a watch was made, here or elsewhere, ends its next wait; a wait that ends promises
//! nothing, the look decides.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::clock::Moved;
use crate::error::{Error, Kind, Result};
use crate::ops::claim::Terms;
use crate::store::{Shared, Store};
use crate::types::Message;
use crate::wait::hub::Lane;
use crate::wait::lease::Held;

/// Knows when something may be ready in some lanes of a store.
pub struct Watch {
    shared: Arc<Shared>,
    lanes: Vec<Arc<Lane>>,
    woken: Arc<Notify>,
    clock_moved: Moved,
}

impl Watch {
    /// Waits until there is reason to look. After a failed look nothing is known: pause before the next one.
    pub async fn wait(&mut self) {
        let hub = self.shared.hub.clone();
        let _waiting = hub.wait();
        tokio::select! {
            () = self.woken.notified() => {}
            () = self.clock_moved.wait() => {}
            () = tokio::time::sleep(hub.rest(&self.lanes)) => {}
        }
    }
}

impl Store {
    /// Watches lanes from now on.
    pub fn watch(&self, lanes: &[i64]) -> Watch {
        let shared = self.shared().clone();
        let woken = Arc::new(Notify::new());
        let lanes: Vec<_> = lanes.iter().map(|lane| shared.hub.lane(*lane)).collect();
        for lane in &lanes {
            shared.hub.subscribe(lane, &woken);
        }
        let clock_moved = shared.hub.clock.watch();
        Watch { shared, lanes, woken, clock_moved }
    }

    /// Leases up to `limit` messages of one lane, at once and for as long as its queue says. For callers that merge and
    /// deal by themselves: others [`claim`](Store::claim).
    pub async fn take(&self, lane: i64, limit: usize) -> Result<Vec<Message>> {
        let shared = self.shared().clone();
        // A task of its own: what is leased for a caller that has gone is released, not left to expire.
        let taking = tokio::spawn(async move {
            let lane = shared.hub.lane(lane);
            let taken = shared.take(&lane, &[(Terms::default(), limit)], limit).await?.concat();
            Ok(Held::lease(&shared, taken))
        });
        let closed = |error| Err(Error::new(Kind::Closed, "the store was closed").with_source(error));
        taking.await.unwrap_or_else(closed).map(|taken| taken.keep().it)
    }
}
