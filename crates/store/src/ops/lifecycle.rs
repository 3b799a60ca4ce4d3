//! What happens to messages without a holder: due ones are promoted, expired leases recovered, the dead buried.
//!
//! Every step is one transaction over one batch, and rows that another process is working on are skipped, so any
//! number of processes can share the work.

use std::ops::Range;

use crate::clock::Clock;
use crate::db::{Conn, decode};
use crate::error::{Kind, Result, invalid};
use crate::ops::claim::{Claimed, Doom};
use crate::ops::finish::{Finish, Finished, Verb, finish};
use crate::ops::{reserve, rows};
use crate::sql::*;
use crate::store::{Shared, Store};
use crate::types::{Fence, Outcome};
use crate::value::{Column, Value};

/// Rows per transaction.
pub(crate) const BATCH: usize = 1000;
/// How many messages a walk over a lane looks at in one turn.
const STRIDE: i64 = 5000;
/// Every position there is.
pub(crate) const ALL: Range<i64> = 0..i64::MAX;

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

    /// Lanes in which scheduled messages are due, up to `limit`.
    pub async fn lanes_due(&self, limit: usize) -> Result<Vec<i64>> {
        let params = [self.clock().value(), rows(limit)];
        let due = self.db().read(move |conn| {
            Box::pin(async move { decode(LANE_DUE, &conn.query(LANE_DUE, &params).await?, |row| row.int()) })
        });
        due.await
    }

    /// One turn of a walk over each of these lanes: among the next few thousand messages from a position on, recovers what its
    /// queue wants recovered and buries what must die. For each lane how far the walk has come; 0: it is over, and begins again.
    ///
    /// Nothing here depends on what a process remembers, and nothing walks a long lane in one go: leases and expiries that
    /// no process has seen are met when the walk comes by. One statement looks at all lanes; a lane in which nothing is to be
    /// done costs nothing more.
    pub async fn tend(&self, walks: &[(i64, i64)]) -> Result<Vec<Result<i64>>> {
        let fixed = [self.clock().value(), Value::Int(STRIDE)];
        let columns =
            [walks.iter().map(|(lane, _)| *lane).collect(), walks.iter().map(|(_, walked)| *walked).collect()];
        let columns: Vec<Column> = columns.into_iter().chain([Column::ordinals(walks.len())]).collect();
        let look = self.db().read(move |conn| {
            Box::pin(async move {
                let rows = conn.each(LANE_CARE, &fixed, &columns).await?;
                decode(LANE_CARE, &rows, |row| {
                    let (n, last, seen) = (row.int()?, row.int_or_null()?, row.int()?);
                    Ok((n, last, seen, row.int()? > 0, row.int()? > 0))
                })
            })
        });
        // Lanes that are not reached stay where they are.
        let mut tended: Vec<Result<i64>> = walks.iter().map(|(_, walked)| Ok(*walked)).collect();
        for (n, last, seen, lapsed, doomed) in look.await? {
            let n = n as usize;
            let Some(last) = last else {
                tended[n] = Ok(0);
                continue;
            };
            let (lane, walked) = walks[n];
            let next = if seen < STRIDE { 0 } else { last.saturating_add(1) };
            let part = walked..last.saturating_add(1);
            tended[n] = self.shared().tend_part(lane, part, lapsed, doomed).await.map(|()| next);
            // The other lanes would each wait for a database that is away.
            if tended[n].as_ref().is_err_and(|error| error.kind() == Kind::Unavailable) {
                break;
            }
        }
        Ok(tended)
    }

    /// Buries what must die in a lane: expired messages, and those whose last allowed lease has run out. Returns how
    /// many. Claims do the same for what they meet; this is for lanes that nobody claims from.
    pub async fn sweep(&self, lane: i64) -> Result<usize> {
        Ok(self.shared().bury_all(lane, None, ALL).await?.len())
    }

    /// Buries what was delivered at least `attempts` times in a lane and is not leased now, whatever its queue allows.
    /// Returns who it was.
    pub async fn bury_exhausted(&self, lane: i64, attempts: u32) -> Result<Vec<i64>> {
        if attempts == 0 {
            return Err(invalid("a limit of 0 attempts would bury every message: give at least 1"));
        }
        self.shared().bury_all(lane, Some(attempts.into()), ALL).await
    }
}

impl Shared {
    async fn tend_part(&self, lane: i64, part: Range<i64>, lapsed: bool, doomed: bool) -> Result<()> {
        if lapsed {
            self.recover_part(lane, part.clone()).await?;
        }
        if doomed {
            self.bury_all(lane, None, part).await?;
        }
        Ok(())
    }

    /// Buries what must die in a part of a lane, one batch after the other. Returns who it was.
    pub(crate) async fn bury_all(&self, lane: i64, attempts: Option<i64>, part: Range<i64>) -> Result<Vec<i64>> {
        let mut buried = Vec::new();
        loop {
            let (clock, part) = (self.hub.clock.clone(), part.clone());
            let act = self
                .hub
                .db
                .transact(move |conn| Box::pin(async move { sweep(conn, &clock, lane, attempts, part).await }));
            let (identities, finished) = act.await?;
            self.announce(&finished);
            buried.extend(identities);
            if finished.len() < BATCH {
                return Ok(buried);
            }
        }
    }

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

    /// Recovers leases where this process knows that there may be some: below the head of its claims. What others have
    /// leased beyond is theirs to recover, or is met by a walk ([`Store::tend`]).
    pub(crate) async fn recover(&self, lane: i64) -> Result<usize> {
        let part = self.hub.lane(lane).state().cursor.leased();
        self.recover_part(lane, part).await
    }

    async fn recover_part(&self, lane: i64, part: Range<i64>) -> Result<usize> {
        let mut total = 0;
        loop {
            let (clock, part) = (self.hub.clock.clone(), part.clone());
            let act =
                self.hub.db.transact(move |conn| Box::pin(async move { recover(conn, &clock, lane, part).await }));
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

async fn recover(conn: &mut Conn<'_>, clock: &Clock, lane: i64, part: Range<i64>) -> Result<Vec<Finished>> {
    let (from, to) = (Value::Int(part.start), Value::Int(part.end));
    let params = [clock.value(), Value::Int(lane), from, Value::Int(BATCH as i64), to];
    let rows = conn.query(MESSAGE_EXPIRED, &params).await?;
    let items = decode(MESSAGE_EXPIRED, &rows, |row| {
        let fence = Fence::exact(row.int()?, row.int()?);
        let verb = match row.bool_or_null()? {
            Some(true) => bury(Doom::Exhausted, fence.attempt.unwrap_or(0), false),
            _ => Verb::Requeue,
        };
        Ok(Finish::new(fence, verb))
    })?;
    finish(conn, clock, &items).await
}

async fn sweep(
    conn: &mut Conn<'_>,
    clock: &Clock,
    lane: i64,
    attempts: Option<i64>,
    part: Range<i64>,
) -> Result<(Vec<i64>, Vec<Finished>)> {
    let (from, to) = (Value::Int(part.start), Value::Int(part.end));
    let params = [clock.value(), Value::Int(lane), from, Value::Int(BATCH as i64), attempts.into(), to];
    let rows = conn.query(MESSAGE_DOOM, &params).await?;
    let doomed = decode(MESSAGE_DOOM, &rows, |row| {
        let (id, attempts) = (row.int()?, row.int()?);
        let doom = if row.bool_or_null()? == Some(true) { Doom::Expired } else { Doom::Exhausted };
        let item = Finish::new(Fence::exact(id, attempts), bury(doom, attempts, false));
        Ok((row.int_or_null()?.unwrap_or(id), item))
    })?;
    let (identities, items): (Vec<i64>, Vec<Finish>) = doomed.into_iter().unzip();
    Ok((identities, finish(conn, clock, &items).await?))
}

/// How a message that a claim found doomed is buried: under the claim's own fence, without counting the claim.
pub(crate) fn burial(claimed: &Claimed) -> Option<Finish> {
    let verb = bury(claimed.doomed?, claimed.message.attempts - 1, true);
    Some(Finish::new(claimed.message.fence(), verb))
}

fn bury(doom: Doom, delivered: i64, uncount: bool) -> Verb {
    let (outcome, reason) = match doom {
        Doom::Expired => (Outcome::Expired, "expired before it was completed".to_owned()),
        Doom::Exhausted => (Outcome::Dead, format!("not completed in {delivered} attempts")),
    };
    Verb::Bury { outcome, reason, uncount }
}
