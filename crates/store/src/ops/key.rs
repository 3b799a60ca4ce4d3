//! Keys: all ready messages of one key under one lease, in order, to one holder at a time.
//!
//! Invariants: `key_lease` has one row per held key, and taking it is compare-and-set, so two holders cannot be; a
//! holder gets every message of the key that is ready at that moment; what arrives later waits, and is not touched
//! when the holder finishes. Messages of the key with a `leased_until` other than zero are exactly the holder's.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::clock::{Clock, micros};
use crate::db::{Conn, decode};
use crate::error::Result;
use crate::ops::claim::{Claimed, claimed};
use crate::ops::count_up;
use crate::ops::finish::{Finish, Verb, finish};
use crate::ops::queue::check_duration;
use crate::receipt::Receipt;
use crate::sql::*;
use crate::store::{Shared, Store};
use crate::types::{Answer, Fence, KeyBatch, Micros};
use crate::value::Value;

impl Store {
    /// Leases all ready messages of the first free key of these lanes: at once if there is one, else as soon as there
    /// is, else none when the wait is over.
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
            // A task of its own: a lease that its caller no longer waits for is given back, not left to run out.
            let (shared, owned) = (self.shared().clone(), lanes.to_vec());
            tokio::spawn(async move {
                let result = shared.claim_free_key(&owned, lease, worker).await;
                if let Err(Ok(Some(batch))) = reply.send(result) {
                    shared.let_key_go(&batch);
                }
            });
            let back = |batch: Option<KeyBatch>| batch.into_iter().for_each(|batch| self.shared().let_key_go(&batch));
            let batch = Receipt::new(answer, back).wait().await?;
            let left = wait.saturating_sub(started.elapsed());
            if batch.is_some() || left.is_zero() {
                return Ok(batch);
            }
            let _waiting = hub.wait();
            tokio::select! {
                () = woken.notified() => {}
                () = clock_moved.wait() => {}
                () = tokio::time::sleep(hub.poll_interval().min(left)) => {}
            }
        }
    }

    /// Completes every message of a key's lease and lets the key go.
    pub async fn key_complete(&self, token: i64) -> Result<Answer> {
        let clock = self.clock().clone();
        let answer = self.db().transact(move |conn| {
            Box::pin(async move {
                let Some((lane, key)) = let_go(conn, token).await? else { return Ok(None) };
                finish_held(conn, &clock, lane, &key, Verb::Complete).await?;
                Ok(Some(lane))
            })
        });
        self.let_go_of(answer.await?)
    }

    /// Gives every message of a key's lease back, in place. With a delay nobody gets the key until it has passed, so
    /// that what arrives meanwhile cannot overtake.
    pub async fn key_abandon(&self, token: i64, delay: Duration) -> Result<Answer> {
        let lane = self.shared().abandon(token, delay, false).await?;
        self.let_go_of(lane)
    }

    fn let_go_of(&self, lane: Option<i64>) -> Result<Answer> {
        let Some(lane) = lane else { return Ok(Answer::Lost) };
        self.shared().hub.ready_key(lane, i64::MAX);
        Ok(Answer::Done)
    }

    /// Extends a key's lease from its deadline, or from now if that has passed. None: it is no longer yours.
    pub async fn key_extend(&self, token: i64, extra: Duration) -> Result<Option<Micros>> {
        check_duration("the extension", extra)?;
        let clock = self.clock().clone();
        self.db()
            .transact(move |conn| {
                Box::pin(async move {
                    let params = [clock.value(), Value::Int(token), Value::Int(micros(extra))];
                    let Some(row) = conn.query_opt(KEY_EXTEND, &params).await? else { return Ok(None) };
                    let mut row = row.fields(KEY_EXTEND.name);
                    let (lane, key, until) = (row.int()?, row.text()?, row.int()?);
                    conn.execute(KEY_STRETCH, &[Value::Int(lane), Value::Text(key), Value::Int(until)]).await?;
                    Ok(Some(until))
                })
            })
            .await
    }
}

impl Shared {
    /// Leases the first free key of these lanes that can be had now.
    async fn claim_free_key(
        &self,
        lanes: &[i64],
        lease: Option<Duration>,
        worker: Option<i64>,
    ) -> Result<Option<KeyBatch>> {
        for lane in lanes {
            self.promote(*lane).await?;
            loop {
                let (lane, clock) = (*lane, self.hub.clock.clone());
                let act = self
                    .hub
                    .db
                    .transact(move |conn| Box::pin(async move { claim_key(conn, &clock, lane, lease, worker).await }));
                match act.await? {
                    Attempt::Empty => break,
                    Attempt::Raced => {}
                    Attempt::Held(batch) => return Ok(Some(batch)),
                }
            }
        }
        Ok(None)
    }

    /// Gives a key's lease back: the lane, or none when it was no longer held.
    async fn abandon(&self, token: i64, delay: Duration, uncount: bool) -> Result<Option<i64>> {
        let clock = self.hub.clock.clone();
        let act = self.hub.db.transact(move |conn| {
            Box::pin(async move {
                let held = match delay.is_zero() {
                    true => let_go(conn, token).await?,
                    false => defer(conn, &clock, token, delay).await?,
                };
                let Some((lane, key)) = held else { return Ok(None) };
                finish_held(conn, &clock, lane, &key, Verb::Release { uncount }).await?;
                Ok(Some(lane))
            })
        });
        act.await
    }

    /// Gives back a key that was leased for a caller who has gone.
    fn let_key_go(self: &Arc<Self>, batch: &KeyBatch) {
        let (shared, lane, token) = (self.clone(), batch.lane, batch.token);
        tokio::spawn(async move {
            match shared.abandon(token, Duration::ZERO, true).await {
                Ok(_) => shared.hub.ready_key(lane, i64::MAX),
                Err(error) => {
                    tracing::warn!(%error, "the key of a caller that went away stays leased until its lease runs out");
                }
            }
        });
    }
}

enum Attempt {
    /// No key is free.
    Empty,
    /// Somebody else was faster, or all that the key had was dead: look again.
    Raced,
    Held(KeyBatch),
}

async fn claim_key(
    conn: &mut Conn<'_>,
    clock: &Clock,
    lane: i64,
    lease: Option<Duration>,
    worker: Option<i64>,
) -> Result<Attempt> {
    let Some(row) = conn.query_opt(KEY_PICK, &[clock.value(), Value::Int(lane), worker.into()]).await? else {
        return Ok(Attempt::Empty);
    };
    let key = row.fields(KEY_PICK.name).text()?;
    let token = new_token(conn).await?;
    let lease = lease.map(micros).into();
    let params = [clock.value(), Value::Int(lane), key.as_str().into(), lease, worker.into(), token];
    let Some(row) = conn.query_opt(KEY_HOLD, &params).await? else { return Ok(Attempt::Raced) };
    let mut row = row.fields(KEY_HOLD.name);
    let (token, leased_until) = (row.int()?, row.int()?);
    let params = [clock.value(), Value::Int(lane), key.as_str().into(), Value::Int(leased_until), worker.into()];
    let rows = conn.query(KEY_LEASE, &params).await?;
    let messages = alive(conn, clock, claimed(KEY_LEASE, &rows, worker)?).await?;
    if messages.is_empty() {
        let_go(conn, token).await?;
        return Ok(Attempt::Raced);
    }
    Ok(Attempt::Held(KeyBatch { lane, key, token, leased_until, messages }))
}

/// A token for a lease: null on PostgreSQL, where the statement draws it from the sequence.
async fn new_token(conn: &mut Conn<'_>) -> Result<Value> {
    match conn.dialect() {
        Dialect::Postgres => Ok(Value::Null),
        Dialect::Sqlite => count_up(conn, Value::Null, 1).await.map(|(token, _)| Value::Int(token)),
    }
}

/// Buries what has run out of attempts or time, in the same transaction, and passes on the rest.
async fn alive(conn: &mut Conn<'_>, clock: &Clock, claimed: Vec<Claimed>) -> Result<Vec<crate::types::Message>> {
    let (doomed, living): (Vec<_>, Vec<_>) = claimed.into_iter().partition(|claimed| claimed.doomed.is_some());
    let burials: Vec<Finish> = doomed.iter().filter_map(super::lifecycle::burial).collect();
    finish(conn, clock, &burials).await?;
    Ok(living.into_iter().map(|claimed| claimed.message).collect())
}

async fn let_go(conn: &mut Conn<'_>, token: i64) -> Result<Option<(i64, String)>> {
    let row = conn.query_opt(KEY_RELEASE, &[Value::Int(token)]).await?;
    row.map(|row| lane_and_key(&row, KEY_RELEASE)).transpose()
}

async fn defer(conn: &mut Conn<'_>, clock: &Clock, token: i64, delay: Duration) -> Result<Option<(i64, String)>> {
    let nobody = new_token(conn).await?;
    let params = [clock.value(), Value::Int(token), Value::Int(micros(delay)), nobody];
    let row = conn.query_opt(KEY_DEFER, &params).await?;
    row.map(|row| lane_and_key(&row, KEY_DEFER)).transpose()
}

fn lane_and_key(row: &crate::value::Row, statement: Statement) -> Result<(i64, String)> {
    let mut row = row.fields(statement.name);
    Ok((row.int()?, row.text()?))
}

async fn finish_held(conn: &mut Conn<'_>, clock: &Clock, lane: i64, key: &str, verb: Verb) -> Result<()> {
    let rows = conn.query(KEY_HELD, &[Value::Int(lane), key.into()]).await?;
    let items = decode(KEY_HELD, &rows, |row| Ok(Finish::new(Fence::exact(row.int()?, row.int()?), verb.clone())))?;
    finish(conn, clock, &items).await?;
    Ok(())
}
