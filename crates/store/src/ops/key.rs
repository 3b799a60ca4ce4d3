//! Keys: the ready messages of one key under one lease, in order, to one holder at a time.
//!
//! Invariants: `key_lease` has one row per held key, and taking it is compare-and-set, so a key has one holder; the lease
//! covers the whole key, of which a holder is given the first messages, bounded in rows and bytes; a message that was given
//! out carries the lease's token, and every verb on it is fenced by that token; extending a lease writes one row. A holder
//! takes one message after the other: what it has not come to when the lease ends has used no attempt.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::calls::Attempt;
use crate::clock::{Clock, micros};
use crate::db::{Conn, decode};
use crate::error::Result;
use crate::ops::claim::{Claimed, claimed};
use crate::ops::finish::{Finish, Verb, finish};
use crate::ops::queue::check_duration;
use crate::ops::worker::worker_stopped;
use crate::ops::{no_lane, reserve_one};
use crate::sql::*;
use crate::store::{Shared, Store, after};
use crate::types::{Answer, Fence, KeyBatch, Micros};
use crate::value::{Column, Value};
use crate::wait::messages::MET;

/// Messages in one batch. A key of 100,000 messages was leased whole before: 450 MB and 3.4 s to the first delivery.
const ROWS: usize = 256;
/// Bytes of payload in one batch; a single larger message still comes.
const BYTES: i64 = 1 << 20;

impl Store {
    /// Leases the first free key of these lanes, and hands out its first messages: at once if there is one, else as soon as
    /// there is, else none when the wait is over.
    ///
    /// A batch has at most 256 messages and about 1 MiB of payload. The lease covers the whole key: no other claim gets any
    /// of its messages until it ends, and those that were not in the batch come with the next one.
    pub async fn claim_key(
        &self,
        lanes: &[i64],
        lease: Option<Duration>,
        worker: Option<i64>,
        wait: Duration,
    ) -> Result<Option<KeyBatch>> {
        lease.map_or(Ok(()), |lease| check_duration("the lease", lease))?;
        if lanes.is_empty() {
            return Ok(None);
        }
        let shared = self.shared();
        let held = shared.keys_of(lanes).wait(shared, (lease, worker), after(wait)).await?;
        Ok(held.map(|held| held.keep().it))
    }

    /// Completes every message of a key's batch and ends the lease.
    pub async fn key_complete(&self, token: i64) -> Result<Answer> {
        self.shared().end_key(token, KeyEnd::Complete).await
    }

    /// Gives every message of a key's batch back, in place. With a delay no claim gets the key until it has passed, so that
    /// what arrives meanwhile cannot overtake. A holder that has come to the message at position `seen` and no further says
    /// so: those behind it are given back without counting an attempt.
    pub async fn key_release(&self, token: i64, delay: Duration, seen: Option<i64>) -> Result<Answer> {
        if !delay.is_zero() {
            // A sum beyond the range of the column would be stored as a float by SQLite, and no look at the lane's keys
            // could read it.
            check_duration("the delay", delay)?;
        }
        self.shared().end_key(token, KeyEnd::Release { delay, seen: seen.unwrap_or(i64::MAX) }).await
    }

    /// Extends leases of keys from their deadlines, or from now for those that have passed. The new deadlines; none: the
    /// lease is no longer held.
    pub async fn key_extend(&self, tokens: &[i64], extra: Duration) -> Result<Vec<Option<Micros>>> {
        check_duration("the extension", extra)?;
        let fixed = [self.clock().value(), Value::Int(micros(extra))];
        let mut until = vec![None; tokens.len()];
        if tokens.is_empty() {
            return Ok(until);
        }
        let tokens: Column = tokens.iter().copied().collect();
        let act = self.db().write(move |conn| {
            Box::pin(async move {
                let rows = conn.each(KEY_EXTEND, &fixed, &[tokens]).await?;
                decode(KEY_EXTEND, &rows, |row| Ok((row.int()?, row.int()?)))
            })
        });
        for (n, extended) in act.await? {
            until[n as usize] = Some(extended);
        }
        Ok(until)
    }
}

/// What the end of a key's lease does with the messages of its batch.
#[derive(Clone, Copy)]
enum KeyEnd {
    Complete,
    /// Gives them back. The key rests for the delay; messages behind the position `seen` have used no attempt.
    Release {
        delay: Duration,
        seen: i64,
    },
}

/// What a look for a free key found.
pub(crate) enum KeyLook {
    Held(KeyBatch),
    /// No key is free; one may be after this long, if it is known.
    Empty(Option<Duration>),
}

impl Shared {
    /// Leases the first free key of these lanes that can be had now. It buries dead messages that it meets on the way; when
    /// there are many, they are buried beside the claims, which skip them meanwhile.
    pub(crate) async fn claim_free_key(
        self: &Arc<Self>,
        lanes: &[i64],
        lease: Option<Duration>,
        worker: Option<i64>,
    ) -> Result<KeyLook> {
        let mut next: Option<Duration> = None;
        for id in lanes {
            self.promote(*id).await?;
            let (lane, mut met) = (self.hub.lane(*id), 0);
            loop {
                let wanted = WantedKey { lane: *id, lease, worker, skip_doomed: lane.state().burying };
                let clock = self.hub.clock.clone();
                let act =
                    self.hub.db.transact(move |conn| Box::pin(async move { claim_key(conn, &clock, &wanted).await }));
                match act.await? {
                    ControlFlow::Continue(dead) => met += dead,
                    ControlFlow::Break(KeyLook::Empty(free)) => {
                        next = next.into_iter().chain(free).min();
                        break;
                    }
                    ControlFlow::Break(held) => return Ok(held),
                }
                if met > MET && !lane.state().burying {
                    self.bury_behind(&lane, Vec::new());
                }
            }
        }
        Ok(KeyLook::Empty(next))
    }

    /// Ends a key's lease, and wakes claims that wait for a key of its lane. A repeat after a lost reply answers with what its
    /// first attempt did.
    async fn end_key(&self, token: i64, end: KeyEnd) -> Result<Answer> {
        let call = |attempt: Attempt| {
            let clock = self.hub.clock.clone();
            self.hub.db.transact(move |conn| {
                Box::pin(async move {
                    match attempt.carried_out(conn).await? {
                        Some(_) => Ok((Answer::Done, None)),
                        None => end_key(conn, &clock, token, end, attempt.token).await,
                    }
                })
            })
        };
        let (answer, lane) = self.repeated(call).await?;
        lane.inspect(|lane| self.hub.key_is_free(*lane));
        Ok(answer)
    }

    /// Releases a key of which no handler has seen a message.
    pub(crate) async fn release_key(&self, token: i64) -> Result<Answer> {
        self.end_key(token, KeyEnd::Release { delay: Duration::ZERO, seen: i64::MIN }).await
    }
}

/// What a claim asks of one lane.
struct WantedKey {
    lane: i64,
    lease: Option<Duration>,
    worker: Option<i64>,
    /// Leaves alone what has no attempt or no time left.
    skip_doomed: bool,
}

/// One look at a lane. `Continue`: another claim was faster, or all that the key had was dead, so many messages.
async fn claim_key(conn: &mut Conn<'_>, clock: &Clock, wanted: &WantedKey) -> Result<ControlFlow<KeyLook, usize>> {
    let asked = Some(std::time::Instant::now());
    let WantedKey { lane, lease, worker, skip_doomed } = *wanted;
    let skip = Value::Bool(skip_doomed);
    let rows = conn.query(KEY_PICK, &[clock.value(), Value::Int(lane), worker.into(), skip.clone()]).await?;
    let mut row = rows[0].fields(KEY_PICK.name);
    let key = row.text_or_null()?;
    let usual_lease = row.int_or_null()?.ok_or_else(|| no_lane(lane))?;
    let lease = lease.map_or(usual_lease, micros);
    let Some(key) = key else {
        let next = row.int_or_null()?.into_iter().chain(row.int_or_null()?).min();
        if let Some(worker) = worker
            && row.bool()?
        {
            return Err(worker_stopped(worker));
        }
        // A millisecond later: databases and timers round.
        let next = next.map(|next| Duration::from_micros(u64::try_from(next).unwrap_or(0) + 1000));
        return Ok(ControlFlow::Break(KeyLook::Empty(next)));
    };
    let peek = [clock.value(), Value::Int(lane), key.as_str().into(), skip.clone(), Value::Int(ROWS as i64)];
    let Some(last) = batch_end(conn, &peek).await? else { return Ok(ControlFlow::Continue(0)) };
    let token = reserve_one(conn).await?;
    let (lane, length, worker_id) = (Value::Int(lane), Value::Int(lease), Value::from(worker));
    let params = [clock.value(), lane.clone(), key.as_str().into(), length, worker_id.clone(), Value::Int(last), token];
    let Some(row) = conn.query_opt(KEY_HOLD, &params).await? else { return Ok(ControlFlow::Continue(0)) };
    let mut row = row.fields(KEY_HOLD.name);
    let (token, leased_until, before) = (row.int()?, row.int()?, row.int_or_null()?);
    if let Some(before) = before {
        take_over(conn, &lane, &key, before).await?;
    }
    let (until, last, leased_at) = (Value::Int(leased_until), Value::Int(last), Value::Int(leased_until - lease));
    let params = [clock.value(), lane, key.as_str().into(), until, worker_id, Value::Int(token), last, leased_at, skip];
    let rows = conn.query(KEY_LEASE, &params).await?;
    let mut messages = alive(conn, clock, claimed(KEY_LEASE, &rows)?).await?;
    let Some(first) = messages.first() else {
        conn.query_opt(KEY_DROP, &[Value::Null, Value::Int(token)]).await?;
        // The next look would find the same key if its messages are leased without it, as an import stored them once.
        let met = [1, 2, 6].map(|n: usize| params[n].clone());
        let stuck = rows.is_empty() && first_leased(conn, &met).await?.is_some();
        return Ok(if stuck { ControlFlow::Break(KeyLook::Empty(None)) } else { ControlFlow::Continue(rows.len()) });
    };
    let lane = first.lane;
    for message in &mut messages {
        (message.token, message.asked, message.worker) = (Some(token), asked, worker);
    }
    Ok(ControlFlow::Break(KeyLook::Held(KeyBatch { lane, key, token, leased_until, messages })))
}

/// Ends a key's lease: whether it was held, and its lane then. `call` is the token under which that is recorded.
async fn end_key(
    conn: &mut Conn<'_>,
    clock: &Clock,
    token: i64,
    end: KeyEnd,
    call: Option<i64>,
) -> Result<(Answer, Option<i64>)> {
    let (statement, params) = match end {
        KeyEnd::Release { delay, .. } if !delay.is_zero() => {
            let rest = [Value::Int(micros(delay)), reserve_one(conn).await?];
            let params = [clock.value(), call.into(), Value::Int(token)];
            (KEY_DEFER, params.into_iter().chain(rest).collect::<Vec<_>>())
        }
        _ => (KEY_DROP, vec![call.into(), Value::Int(token)]),
    };
    let Some(row) = conn.query_opt(statement, &params).await? else { return Ok((Answer::Lost, None)) };
    let mut row = row.fields(statement.name);
    // A lease from before there were batches has everything.
    let (lane, key, last) = (row.int()?, row.text()?, row.int_or_null()?.unwrap_or(i64::MAX));
    let batch = [Value::Int(lane), Value::Text(key), Value::Int(last)].into_iter();
    match end {
        KeyEnd::Complete => {
            let rows = conn.query(KEY_HELD, &batch.chain([Value::Int(token)]).collect::<Vec<_>>()).await?;
            let fences = decode(KEY_HELD, &rows, |row| Ok(Fence::exact(row.int()?, row.int()?)))?;
            let items: Vec<Finish> = fences.into_iter().map(|fence| Finish::new(fence, Verb::Complete)).collect();
            finish(conn, clock, &items).await?;
        }
        KeyEnd::Release { seen, .. } => {
            conn.execute(KEY_FREE, &batch.chain([Value::Int(seen)]).collect::<Vec<_>>()).await?;
        }
    }
    Ok((Answer::Done, Some(lane)))
}

/// The position of the last message that fits into a batch of this key; none: it has no message any more.
async fn batch_end(conn: &mut Conn<'_>, peek: &[Value]) -> Result<Option<i64>> {
    let rows = conn.query(KEY_PEEK, peek).await?;
    let mut last = None;
    let mut bytes = 0;
    for (id, length) in decode(KEY_PEEK, &rows, |row| Ok((row.int()?, row.int()?)))? {
        bytes += length;
        if last.is_some() && bytes > BYTES {
            break;
        }
        last = Some(id);
    }
    Ok(last)
}

/// Gives back what a former holder, whose lease has expired, was given up to a position. It has seen the first of it.
async fn take_over(conn: &mut Conn<'_>, lane: &Value, key: &str, before: i64) -> Result<()> {
    let params = [lane.clone(), key.into(), Value::Int(before)];
    let Some(first) = first_leased(conn, &params).await? else { return Ok(()) };
    let [lane, key, before] = params;
    conn.execute(KEY_FREE, &[lane, key, before, Value::Int(first)]).await?;
    Ok(())
}

/// The first message of a key up to a position that is leased.
async fn first_leased(conn: &mut Conn<'_>, params: &[Value; 3]) -> Result<Option<i64>> {
    conn.query(KEY_FIRST, params).await?[0].fields(KEY_FIRST.name).int_or_null()
}

/// Buries what has run out of attempts or time, in the same transaction, and passes on the rest.
async fn alive(conn: &mut Conn<'_>, clock: &Clock, claimed: Vec<Claimed>) -> Result<Vec<crate::types::Message>> {
    let (doomed, living): (Vec<_>, Vec<_>) = claimed.into_iter().partition(|claimed| claimed.doomed.is_some());
    let burials: Vec<Finish> = doomed.iter().filter_map(super::lifecycle::burial).collect();
    finish(conn, clock, &burials).await?;
    Ok(living.into_iter().map(|claimed| claimed.message).collect())
}
