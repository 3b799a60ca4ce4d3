//! What happens to messages without a holder: due ones are promoted, expired leases recovered, the dead buried.
//!
//! Every step is one transaction over one batch, and rows that another process is working on are skipped, so any
//! number of processes can share the work.

use crate::clock::Clock;
use crate::db::{Conn, decode};
use crate::error::{Result, invalid};
use crate::ops::claim::{Claimed, Doom};
use crate::ops::finish::{Finish, Finished, Verb, finish};
use crate::ops::reserve;
use crate::sql::*;
use crate::store::{Shared, Store};
use crate::types::{Fence, Outcome};
use crate::value::{Column, Value};

/// Rows per transaction.
pub(crate) const BATCH: usize = 1000;

impl Store {
    /// Moves due messages of a lane to its tail, in the order of their due times. Returns how many.
    pub async fn promote(&self, lane: i64) -> Result<usize> {
        self.shared().promote(lane).await
    }

    /// Moves messages whose lease has run out to the tail of their lane, and buries those that have no attempt left.
    /// Only for queues that want it so: elsewhere an expired lease is seen by the next claim, in place.
    pub async fn recover(&self, lane: i64) -> Result<usize> {
        self.shared().recover(lane).await
    }

    /// Buries what must die in a lane: expired messages, and those whose last allowed lease has run out. Returns how
    /// many. Claims do the same for what they meet; this is for lanes that nobody claims from.
    pub async fn sweep(&self, lane: i64) -> Result<usize> {
        Ok(self.bury_all(lane, None).await?.len())
    }

    /// Buries what was delivered at least `attempts` times in a lane and is not leased now, whatever its queue allows.
    /// Returns who it was.
    pub async fn bury_exhausted(&self, lane: i64, attempts: u32) -> Result<Vec<i64>> {
        if attempts == 0 {
            return Err(invalid("a limit of 0 attempts would bury every message: give at least 1"));
        }
        self.bury_all(lane, Some(attempts.into())).await
    }

    async fn bury_all(&self, lane: i64, attempts: Option<i64>) -> Result<Vec<i64>> {
        let mut buried = Vec::new();
        loop {
            let clock = self.clock().clone();
            let act =
                self.db().transact(move |conn| Box::pin(async move { sweep(conn, &clock, lane, attempts).await }));
            let (identities, finished) = act.await?;
            self.announce(&finished);
            buried.extend(identities);
            if finished.len() < BATCH {
                return Ok(buried);
            }
        }
    }

    /// Forgets dedupe keys and key leases that no longer mean anything. Returns how many dedupe keys.
    pub async fn forget(&self) -> Result<u64> {
        let clock = self.clock().clone();
        self.db()
            .transact(move |conn| {
                Box::pin(async move {
                    conn.execute(KEY_PRUNE, &[clock.value()]).await?;
                    conn.execute(DEDUPE_PRUNE, &[clock.value(), Value::Int(BATCH as i64)]).await
                })
            })
            .await
    }
}

impl Shared {
    pub(crate) async fn promote(&self, lane: i64) -> Result<usize> {
        let mut total = 0;
        loop {
            let clock = self.hub.clock.clone();
            let act = self.hub.db.transact(move |conn| Box::pin(async move { promote(conn, &clock, lane).await }));
            let moved = act.await?;
            total += moved;
            if moved < BATCH {
                break;
            }
        }
        if total > 0 {
            self.hub.ready_somewhere(lane);
        }
        Ok(total)
    }

    pub(crate) async fn recover(&self, lane: i64) -> Result<usize> {
        let mut total = 0;
        loop {
            let clock = self.hub.clock.clone();
            let act = self.hub.db.transact(move |conn| Box::pin(async move { recover(conn, &clock, lane).await }));
            let finished = act.await?;
            self.announce(&finished);
            total += finished.len();
            if finished.len() < BATCH {
                return Ok(total);
            }
        }
    }
}

async fn promote(conn: &mut Conn<'_>, clock: &Clock, lane: i64) -> Result<usize> {
    let params = [clock.value(), Value::Int(lane), Value::Int(BATCH as i64)];
    let rows = conn.query(SCHEDULED_DUE, &params).await?;
    let due: Column = decode(SCHEDULED_DUE, &rows, |row| row.int())?.into_iter().collect();
    if due.len() == 0 {
        return Ok(0);
    }
    let ids = reserve(conn, due.len()).await?;
    let rows = conn.each(SCHEDULED_PROMOTE, &[], &[due, ids]).await?;
    Ok(rows.len())
}

async fn recover(conn: &mut Conn<'_>, clock: &Clock, lane: i64) -> Result<Vec<Finished>> {
    let params = [clock.value(), Value::Int(lane), Value::Int(0), Value::Int(BATCH as i64)];
    let rows = conn.query(MESSAGE_EXPIRED, &params).await?;
    let items = decode(MESSAGE_EXPIRED, &rows, |row| {
        let fence = Fence::exact(row.int()?, row.int()?);
        let verb = match row.bool_or_null()? {
            Some(true) => bury(Doom::Exhausted, fence.attempt.unwrap_or(0), false),
            _ => Verb::Requeue,
        };
        Ok(Finish { fence, verb })
    })?;
    finish(conn, clock, &items).await
}

async fn sweep(
    conn: &mut Conn<'_>,
    clock: &Clock,
    lane: i64,
    attempts: Option<i64>,
) -> Result<(Vec<i64>, Vec<Finished>)> {
    let params = [clock.value(), Value::Int(lane), Value::Int(0), Value::Int(BATCH as i64), attempts.into()];
    let rows = conn.query(MESSAGE_DOOM, &params).await?;
    let doomed = decode(MESSAGE_DOOM, &rows, |row| {
        let (id, attempts) = (row.int()?, row.int()?);
        let doom = if row.bool_or_null()? == Some(true) { Doom::Expired } else { Doom::Exhausted };
        let item = Finish { fence: Fence::exact(id, attempts), verb: bury(doom, attempts, false) };
        Ok((row.int_or_null()?.unwrap_or(id), item))
    })?;
    let (identities, items): (Vec<i64>, Vec<Finish>) = doomed.into_iter().unzip();
    Ok((identities, finish(conn, clock, &items).await?))
}

/// How a message that a claim found doomed is buried: under the claim's own fence, without counting the claim.
pub(crate) fn burial(claimed: &Claimed) -> Option<Finish> {
    let verb = bury(claimed.doomed?, claimed.message.attempts - 1, true);
    Some(Finish { fence: claimed.message.fence(), verb })
}

fn bury(doom: Doom, delivered: i64, uncount: bool) -> Verb {
    let (outcome, reason) = match doom {
        Doom::Expired => (Outcome::Expired, "expired before it was completed".to_owned()),
        Doom::Exhausted => (Outcome::Dead, format!("not completed in {delivered} attempts")),
    };
    Verb::Bury { outcome, reason, uncount }
}
