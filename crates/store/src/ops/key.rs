//! Keys: the ready messages of one key under one lease, in order, to one holder at a time.
//!
//! Invariants: `key_lease` has one row per held key, and taking it is compare-and-set, so a key has one holder; the lease
//! covers the whole key, of which a holder is given the first messages, bounded in rows and bytes; a message that was given
//! out carries the lease's token, and every verb on it is fenced by that token; extending a lease writes one row. A holder
//! takes one message after the other: what it has not come to when the lease ends has used no attempt.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::clock::{Clock, micros};
use crate::db::{Conn, decode};
use crate::error::Result;
use crate::ops::claim::{Claimed, claimed};
use crate::ops::finish::{Finish, Verb, finish};
use crate::ops::queue::check_duration;
use crate::ops::worker::worker_stopped;
use crate::ops::{no_lane, reserve_one};
use crate::receipt::{Receipt, Return};
use crate::sql::*;
use crate::store::{Shared, Store};
use crate::types::{Answer, Fence, KeyBatch, Micros};
use crate::value::{Column, Row, Value};

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
        let hub = &self.shared().hub;
        let woken = Arc::new(Notify::new());
        for lane in lanes.iter().filter(|_| !wait.is_zero()) {
            hub.subscribe_keys(*lane, &woken);
        }
        let mut clock_moved = hub.clock.watch();
        let started = Instant::now();
        loop {
            let (reply, answer) = oneshot::channel();
            // A task of its own: a lease whose caller has gone is given back, not left to expire.
            let (shared, owned) = (self.shared().clone(), lanes.to_vec());
            let task = self.shared().returns.begin();
            tokio::spawn(async move {
                let result = shared.claim_free_key(&owned, lease, worker).await;
                if let Err(Ok(KeyLook::Held(batch))) = reply.send(result) {
                    shared.give_key_back(&batch, task);
                }
            });
            let back = |look| {
                if let KeyLook::Held(batch) = look {
                    self.shared().give_key_back(&batch, self.shared().returns.begin());
                }
            };
            let next = match Receipt::new(answer, back).wait().await? {
                KeyLook::Held(batch) => return Ok(Some(batch)),
                KeyLook::Empty(next) => next,
            };
            let left = wait.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            let _waiting = hub.wait();
            let sleep = hub.poll_interval().min(next.unwrap_or(Duration::MAX)).min(left);
            tokio::select! {
                () = woken.notified() => {}
                () = clock_moved.wait() => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// Completes every message of a key's batch and ends the lease.
    pub async fn key_complete(&self, token: i64) -> Result<Answer> {
        let clock = self.clock().clone();
        let act = self.db().transact(move |conn| {
            Box::pin(async move {
                let Some(row) = conn.query_opt(KEY_DROP, &[Value::Int(token)]).await? else { return Ok(None) };
                let (lane, key, last) = ended(&row, KEY_DROP)?;
                let rows = conn.query(KEY_HELD, &[Value::Int(lane), Value::Text(key), last, Value::Int(token)]).await?;
                let items = decode(KEY_HELD, &rows, |row| {
                    Ok(Finish::new(Fence::exact(row.int()?, row.int()?), Verb::Complete))
                })?;
                finish(conn, &clock, &items).await?;
                Ok(Some(lane))
            })
        });
        let lane = act.await?;
        Ok(self.shared().key_is_free(lane))
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
        let lane = self.shared().release_key(token, delay, seen.unwrap_or(i64::MAX)).await?;
        Ok(self.shared().key_is_free(lane))
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

/// What a look for a free key found.
enum KeyLook {
    Held(KeyBatch),
    /// No key is free; one may be after this long, if it is known.
    Empty(Option<Duration>),
}

impl Shared {
    /// Leases the first free key of these lanes that can be had now.
    async fn claim_free_key(&self, lanes: &[i64], lease: Option<Duration>, worker: Option<i64>) -> Result<KeyLook> {
        let mut next: Option<Duration> = None;
        for lane in lanes {
            self.promote(*lane).await?;
            loop {
                let (lane, clock) = (*lane, self.hub.clock.clone());
                let act = self
                    .hub
                    .db
                    .transact(move |conn| Box::pin(async move { claim_key(conn, &clock, lane, lease, worker).await }));
                match act.await? {
                    None => {}
                    Some(KeyLook::Empty(free)) => {
                        next = next.into_iter().chain(free).min();
                        break;
                    }
                    Some(held) => return Ok(held),
                }
            }
        }
        Ok(KeyLook::Empty(next))
    }

    /// Ends a key's lease, after a delay if it is to rest, and gives its messages back. The lane; none when it was not held.
    async fn release_key(&self, token: i64, delay: Duration, seen: i64) -> Result<Option<i64>> {
        let clock = self.hub.clock.clone();
        let act = self.hub.db.transact(move |conn| {
            Box::pin(async move {
                let (statement, params) = match delay.is_zero() {
                    true => (KEY_DROP, vec![Value::Int(token)]),
                    false => {
                        let delay = Value::Int(micros(delay));
                        (KEY_DEFER, vec![clock.value(), Value::Int(token), delay, reserve_one(conn).await?])
                    }
                };
                let Some(row) = conn.query_opt(statement, &params).await? else { return Ok(None) };
                let (lane, key, last) = ended(&row, statement)?;
                conn.execute(KEY_FREE, &[Value::Int(lane), Value::Text(key), last, Value::Int(seen)]).await?;
                Ok(Some(lane))
            })
        });
        act.await
    }

    /// Wakes claims that wait for a key of this lane; none: the lease was no longer held.
    fn key_is_free(&self, lane: Option<i64>) -> Answer {
        let Some(lane) = lane else { return Answer::Lost };
        self.hub.key_is_free(lane);
        Answer::Done
    }

    /// Gives back a key that was leased for a caller who has gone: no handler has seen its messages.
    fn give_key_back(self: &Arc<Self>, batch: &KeyBatch, task: Return) {
        let (shared, token) = (self.clone(), batch.token);
        tokio::spawn(async move {
            match shared.release_key(token, Duration::ZERO, i64::MIN).await {
                Ok(lane) => drop(shared.key_is_free(lane)),
                Err(error) => {
                    tracing::warn!(%error, "could not release a key whose caller has gone; it is free when its lease expires");
                }
            }
            drop(task);
        });
    }
}

/// One look at a lane. None: another claim was faster, or all that the key had was dead.
async fn claim_key(
    conn: &mut Conn<'_>,
    clock: &Clock,
    lane: i64,
    lease: Option<Duration>,
    worker: Option<i64>,
) -> Result<Option<KeyLook>> {
    let asked = Some(std::time::Instant::now());
    let rows = conn.query(KEY_PICK, &[clock.value(), Value::Int(lane), worker.into()]).await?;
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
        return Ok(Some(KeyLook::Empty(next)));
    };
    let Some(last) = batch_end(conn, lane, &key).await? else { return Ok(None) };
    let token = reserve_one(conn).await?;
    let (lane, length, worker_id) = (Value::Int(lane), Value::Int(lease), Value::from(worker));
    let params = [clock.value(), lane.clone(), key.as_str().into(), length, worker_id.clone(), Value::Int(last), token];
    let Some(row) = conn.query_opt(KEY_HOLD, &params).await? else { return Ok(None) };
    let mut row = row.fields(KEY_HOLD.name);
    let (token, leased_until, before) = (row.int()?, row.int()?, row.int_or_null()?);
    if let Some(before) = before {
        take_over(conn, &lane, &key, before).await?;
    }
    let (until, last, leased_at) = (Value::Int(leased_until), Value::Int(last), Value::Int(leased_until - lease));
    let params = [clock.value(), lane, key.as_str().into(), until, worker_id, Value::Int(token), last, leased_at];
    let rows = conn.query(KEY_LEASE, &params).await?;
    let mut messages = alive(conn, clock, claimed(KEY_LEASE, &rows)?).await?;
    let Some(first) = messages.first() else {
        conn.query_opt(KEY_DROP, &[Value::Int(token)]).await?;
        return Ok(None);
    };
    let lane = first.lane;
    for message in &mut messages {
        (message.token, message.asked, message.worker) = (Some(token), asked, worker);
    }
    Ok(Some(KeyLook::Held(KeyBatch { lane, key, token, leased_until, messages })))
}

/// The position of the last message that fits into a batch of this key; none: it has no message any more.
async fn batch_end(conn: &mut Conn<'_>, lane: i64, key: &str) -> Result<Option<i64>> {
    let rows = conn.query(KEY_PEEK, &[Value::Int(lane), key.into(), Value::Int(ROWS as i64)]).await?;
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
    let rows = conn.query(KEY_FIRST, &params).await?;
    let Some(first) = rows[0].fields(KEY_FIRST.name).int_or_null()? else { return Ok(()) };
    let [lane, key, before] = params;
    conn.execute(KEY_FREE, &[lane, key, before, Value::Int(first)]).await?;
    Ok(())
}

/// Buries what has run out of attempts or time, in the same transaction, and passes on the rest.
async fn alive(conn: &mut Conn<'_>, clock: &Clock, claimed: Vec<Claimed>) -> Result<Vec<crate::types::Message>> {
    let (doomed, living): (Vec<_>, Vec<_>) = claimed.into_iter().partition(|claimed| claimed.doomed.is_some());
    let burials: Vec<Finish> = doomed.iter().filter_map(super::lifecycle::burial).collect();
    finish(conn, clock, &burials).await?;
    Ok(living.into_iter().map(|claimed| claimed.message).collect())
}

/// Lane, key and last position of a lease that has ended.
fn ended(row: &Row, statement: Statement) -> Result<(i64, String, Value)> {
    let mut row = row.fields(statement.name);
    // A lease from before there were batches has everything.
    Ok((row.int()?, row.text()?, Value::Int(row.int_or_null()?.unwrap_or(i64::MAX))))
}
