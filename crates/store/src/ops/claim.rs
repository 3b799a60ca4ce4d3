//! Claiming: find the first free messages of a lane, lease them for the callers that wait for them, return them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::clock::{Clock, micros};
use crate::db::{Conn, decode};
use crate::error::{Error, Kind, Result};
use crate::ops::{message, rows};
use crate::sql::{Dialect, LANE_FLOOR, MESSAGE_ASSIGN, MESSAGE_CLAIM, Statement, WORKER_READY};
use crate::types::Message;
use crate::value::{Fields, Row, Value};
use crate::wait::cursor::Look;

/// A message that was just leased.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) message: Message,
    /// It has no attempt left, or no time: it was leased only to be buried under its fence.
    pub(crate) doomed: Option<Doom>,
}

/// Why a leased message must be buried instead of delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doom {
    Exhausted,
    Expired,
}

/// What claims must have in common to lease a message alike: how long (none: as long as the queue says), and for which worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Terms {
    pub(crate) lease: Option<Duration>,
    pub(crate) worker: Option<i64>,
}

/// What merged claims ask of one lane.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) lane: i64,
    /// The first position.
    pub(crate) from: i64,
    /// The terms on which each message is leased, in order: as many messages as this is long, at most.
    pub(crate) slots: Vec<Terms>,
    /// Leaves alone what has no attempt or no time left.
    pub(crate) skip_doomed: bool,
}

/// What merged claims got from one lane.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Oldest first, each with the number of its slot. Slots are used in order, but for those of workers that are not ready.
    pub(crate) messages: Vec<(usize, Claimed)>,
    /// Whether every slot was used: there may be more messages.
    pub(crate) full: bool,
}

/// Leases messages of one lane.
pub(crate) async fn claim(conn: &mut Conn<'_>, clock: &Clock, wanted: &Wanted) -> Result<Batch> {
    let asked = Some(Instant::now());
    let mut leased = match conn.dialect() {
        Dialect::Postgres => claim_together(conn, clock, wanted).await?,
        Dialect::Sqlite => claim_and_assign(conn, clock, wanted).await?,
    };
    for (slot, Claimed { message, .. }) in &mut leased.messages {
        message.worker = wanted.slots[*slot].worker;
        message.asked = asked;
    }
    Ok(leased)
}

/// In one statement, which is given the terms of the messages as arrays.
async fn claim_together(conn: &mut Conn<'_>, clock: &Clock, wanted: &Wanted) -> Result<Batch> {
    let workers: BTreeSet<i64> = wanted.slots.iter().filter_map(|slot| slot.worker).map(known_worker).collect();
    let params = [
        clock.value(),
        Value::Int(wanted.lane),
        Value::Int(wanted.from),
        Value::Bool(wanted.skip_doomed),
        Value::Ints(wanted.slots.iter().map(|slot| slot.lease.map_or(0, micros)).collect()),
        Value::Ints(wanted.slots.iter().map(|slot| slot.worker.map_or(0, known_worker)).collect()),
        Value::Ints(workers.into_iter().collect()),
    ];
    let rows = conn.query(MESSAGE_CLAIM, &params).await?;
    let mut granted = 0;
    let mut messages = decode(MESSAGE_CLAIM, &rows, |row| {
        let claimed = read(row)?;
        // Arrays count from 1.
        let slot = usize::try_from(row.int()? - 1).unwrap_or(usize::MAX);
        granted = row.int()?;
        Ok((slot, claimed))
    })?;
    messages.sort_unstable_by_key(|(_, claimed)| claimed.message.id);
    let full = !messages.is_empty() && messages.len() as i64 == granted;
    Ok(Batch { messages, full })
}

/// Arrays hold no nulls: 0 stands for no worker. A caller that names worker 0 means one that is not there, as -1 is.
fn known_worker(worker: i64) -> i64 {
    if worker == 0 { -1 } else { worker }
}

/// In a transaction, on databases without arrays: all messages on the terms of the first slot, then those on other terms are
/// changed.
async fn claim_and_assign(conn: &mut Conn<'_>, clock: &Clock, wanted: &Wanted) -> Result<Batch> {
    let workers: BTreeSet<i64> = wanted.slots.iter().filter_map(|slot| slot.worker).collect();
    let mut ready = BTreeSet::new();
    for worker in workers {
        if conn.query_opt(WORKER_READY, &[Value::Int(worker)]).await?.is_some() {
            ready.insert(worker);
        }
    }
    let is_granted = |slot: &usize| wanted.slots[*slot].worker.is_none_or(|worker| ready.contains(&worker));
    let granted: Vec<usize> = (0..wanted.slots.len()).filter(is_granted).collect();
    let Some(first) = granted.first().map(|slot| wanted.slots[*slot]) else { return Ok(Batch::default()) };
    let params = [
        clock.value(),
        Value::Int(wanted.lane),
        Value::Int(wanted.from),
        Value::Bool(wanted.skip_doomed),
        first.lease.map(micros).into(),
        first.worker.into(),
        rows(granted.len()),
    ];
    let found = conn.query(MESSAGE_CLAIM, &params).await?;
    let full = found.len() == granted.len();
    let mut messages: Vec<(usize, Claimed)> = granted.into_iter().zip(claimed(MESSAGE_CLAIM, &found)?).collect();
    for (slot, Claimed { message, .. }) in &mut messages {
        let Terms { lease, worker } = wanted.slots[*slot];
        if wanted.slots[*slot] != first {
            let params = [Value::Int(message.id), lease.map(micros).into(), worker.into()];
            let row = conn.query_opt(MESSAGE_ASSIGN, &params).await?.ok_or_else(|| unassigned(message.id))?;
            message.leased_until = row.fields(MESSAGE_ASSIGN.name).int()?;
        }
    }
    Ok(Batch { messages, full })
}

fn unassigned(id: i64) -> Error {
    Error::new(Kind::Corrupt, format!("message {id} vanished inside the transaction that leased it"))
}

/// Decodes what a claim returned, oldest first: an update returns rows in any order.
pub(crate) fn claimed(statement: Statement, rows: &[Row]) -> Result<Vec<Claimed>> {
    let mut claimed = decode(statement, rows, read)?;
    claimed.sort_unstable_by_key(|claimed| claimed.message.id);
    Ok(claimed)
}

fn read(row: &mut Fields<'_>) -> Result<Claimed> {
    let mut message = message(row)?;
    let exhausted = row.bool_or_null()? == Some(true);
    let expired = row.bool_or_null()? == Some(true);
    message.keep = row.bool()?;
    let doomed = match (expired, exhausted) {
        (true, _) => Some(Doom::Expired),
        (false, true) => Some(Doom::Exhausted),
        (false, false) => None,
    };
    Ok(Claimed { message, doomed })
}

/// The lowest live position of a lane, and what was running when we looked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FloorSeen {
    /// None: the lane is empty from the old floor on.
    pub(crate) floor: Option<i64>,
    /// The oldest transaction still running.
    pub(crate) running: i64,
    /// The oldest one that may have drawn ids, read after the rest; none: not asked for.
    pub(crate) writers: Option<i64>,
    /// A number that every transaction which has drawn an id is below; none: not asked for.
    pub(crate) started: Option<i64>,
}

pub(crate) async fn floor(conn: &mut Conn<'_>, lane: i64, look: Look) -> Result<FloorSeen> {
    let params = [Value::Int(lane), Value::Int(look.from), look.started.into(), Value::Bool(look.wanted)];
    let rows = conn.query(LANE_FLOOR, &params).await?;
    let mut row = rows[0].fields(LANE_FLOOR.name);
    Ok(FloorSeen {
        floor: row.int_or_null()?,
        running: row.int()?,
        writers: row.int_or_null()?,
        started: row.int_or_null()?,
    })
}
