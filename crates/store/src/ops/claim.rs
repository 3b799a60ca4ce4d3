//! Claiming: find the first free messages of a lane, lease them, return them, in one statement.

use std::time::{Duration, Instant};

use crate::clock::{Clock, micros};
use crate::cursor::Look;
use crate::db::Conn;
use crate::error::Result;
use crate::ops::{message, rows};
use crate::sql::{LANE_FLOOR, MESSAGE_CLAIM, Statement};
use crate::types::Message;
use crate::value::{Fields, Row, Value};

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

/// What a claim asks of one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) lane: i64,
    /// The first position.
    pub(crate) from: i64,
    pub(crate) limit: usize,
    pub(crate) lease: Option<Duration>,
    pub(crate) worker: Option<i64>,
    /// Leaves alone what has no attempt or no time left.
    pub(crate) skip_doomed: bool,
}

/// Leases messages of one lane, oldest first.
pub(crate) async fn claim(conn: &mut Conn<'_>, clock: &Clock, wanted: Wanted) -> Result<Vec<Claimed>> {
    let Wanted { lane, from, limit, lease, worker, skip_doomed } = wanted;
    let params = [
        clock.value(),
        Value::Int(lane),
        Value::Int(from),
        rows(limit),
        lease.map(micros).into(),
        worker.into(),
        Value::Bool(skip_doomed),
    ];
    let asked = Some(Instant::now());
    let rows = conn.query(MESSAGE_CLAIM, &params).await?;
    let mut claimed = claimed(MESSAGE_CLAIM, &rows, worker)?;
    claimed.iter_mut().for_each(|claimed| claimed.message.asked = asked);
    Ok(claimed)
}

/// Decodes what a claim returned, oldest first: an update returns rows in any order.
pub(crate) fn claimed(statement: Statement, rows: &[Row], worker: Option<i64>) -> Result<Vec<Claimed>> {
    let mut claimed = crate::db::decode(statement, rows, |row| read(row, worker))?;
    claimed.sort_unstable_by_key(|claimed| claimed.message.id);
    Ok(claimed)
}

fn read(row: &mut Fields<'_>, worker: Option<i64>) -> Result<Claimed> {
    let mut message = message(row)?;
    let exhausted = row.bool_or_null()? == Some(true);
    let expired = row.bool_or_null()? == Some(true);
    message.keep = row.bool()?;
    message.worker = worker;
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
