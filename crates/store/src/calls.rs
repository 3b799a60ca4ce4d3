//! Calls of verbs that are recognised when they are repeated after a lost connection.
//!
//! Invariants: a flush of verbs has a token, and records under it, in its own transaction, which of its items were done; so
//! does the end of a key's lease, which is one item; a repeat first closes the tokens of all earlier attempts, which waits
//! for an attempt that is still running and keeps one that arrives late from being carried out, and then answers with what
//! the record of an earlier attempt says. Only PostgreSQL needs this: a reply of an embedded database cannot be lost.
//!
//! The record is one row a flush: with a durable commit its cost was not measurable (pgbench, one client: 276 and 279
//! completes a second without and with it, docs/adr/0017).

use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicI64, Ordering};

use rand::Rng as _;

use crate::db::{Conn, Db};
use crate::error::Result;
use crate::sql::{CALL_CLOSE, CALL_FIND, CALL_FORGET, CALL_PRUNE, CALL_WINDOW};
use crate::types::Micros;
use crate::value::Value;

/// How long a record is kept at least: longer than any call is repeated.
const KEPT: Micros = 300_000_000;
/// Records that are looked through at once.
const FORGOTTEN: i64 = 10_000;

/// Records that are removed at once: a process with 5,000 flushes a second has 1.5 million to remove every five minutes.
const PRUNED: usize = 10_000;

/// Numbers the calls of one process.
pub(crate) struct Calls {
    next: AtomicI64,
    pruned: Mutex<Pruned>,
}

/// How far a process has removed its records.
struct Pruned {
    /// When it did so last.
    at: Micros,
    /// All records below this token are removed.
    below: i64,
    /// The token that came next then.
    next: i64,
}

impl Default for Calls {
    fn default() -> Self {
        // 31 random bits for the process, and 2^32 calls. Of 1,000 processes that are started within the hour for which a record
        // is kept at most, two have the same number with a probability of 1 in 4,300. The call that then meets another's record
        // is refused by the primary key and not carried out.
        let first = i64::from(rand::rng().random::<u32>() >> 1) << 32;
        Calls { next: AtomicI64::new(first), pruned: Mutex::new(Pruned { at: 0, below: first, next: first }) }
    }
}

impl Calls {
    /// A call's first attempt.
    pub(crate) fn begin(&self, db: &Db) -> Attempt {
        let token = matches!(db, Db::Postgres(_)).then(|| self.next.fetch_add(1, Ordering::Relaxed));
        Attempt { token, earlier: Vec::new() }
    }

    /// The next attempt of a call that may have been carried out.
    pub(crate) fn again(&self, attempt: Attempt) -> Attempt {
        let Attempt { token, mut earlier } = attempt;
        earlier.extend(token);
        Attempt { token: token.map(|_| self.next.fetch_add(1, Ordering::Relaxed)), earlier }
    }

    /// Removes records that no repeat can need any more, once in a while.
    pub(crate) fn prune(&self, db: &Db, now: Micros) {
        let old = self.old(now);
        if old.is_empty() {
            return;
        }
        let db = db.clone();
        tokio::spawn(async move {
            for from in old.clone().step_by(PRUNED) {
                let params = [Value::Int(from), Value::Int(old.end.min(from + PRUNED as i64))];
                let act = db.write(move |conn| Box::pin(async move { conn.execute(CALL_PRUNE, &params).await }));
                if let Err(error) = act.await {
                    tracing::warn!(%error, "could not remove the records of old calls; housekeeping removes them later");
                    return;
                }
            }
        });
    }

    /// The tokens of calls that no repeat can need any more and that were not answered with before; empty most of the time.
    fn old(&self, now: Micros) -> Range<i64> {
        let next = self.next.load(Ordering::Relaxed);
        let mut pruned = self.pruned.lock().unwrap_or_else(PoisonError::into_inner);
        if now - pruned.at < KEPT {
            return 0..0;
        }
        let old = pruned.below..pruned.next;
        *pruned = Pruned { at: now, below: old.end, next };
        old
    }
}

/// Looks through the next records after a token and removes those of processes that ended: how far this came, and how many;
/// none: there are no more.
pub(crate) async fn forget(db: &Db, now: Value, after: i64) -> Result<Option<(i64, u64)>> {
    if !matches!(db, Db::Postgres(_)) {
        return Ok(None);
    }
    let look = db.read(move |conn| {
        Box::pin(async move {
            let rows = conn.query(CALL_WINDOW, &[Value::Int(after), Value::Int(FORGOTTEN)]).await?;
            rows[0].fields(CALL_WINDOW.name).int_or_null()
        })
    });
    let Some(upto) = look.await? else { return Ok(None) };
    let params = [now, Value::Int(after), Value::Int(upto)];
    let gone = db.write(move |conn| Box::pin(async move { conn.execute(CALL_FORGET, &params).await })).await?;
    Ok(Some((upto, gone)))
}

/// One attempt to carry out a call.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    /// What this attempt records itself under.
    pub(crate) token: Option<i64>,
    /// The tokens of attempts whose reply was lost.
    earlier: Vec<i64>,
}

impl Attempt {
    pub(crate) fn is_first(&self) -> bool {
        self.earlier.is_empty()
    }

    /// What an earlier attempt did, if one was carried out; afterwards none can be.
    pub(crate) async fn carried_out(&self, conn: &mut Conn<'_>) -> Result<Option<Carried>> {
        if self.is_first() {
            return Ok(None);
        }
        let earlier = [Value::Ints(self.earlier.clone())];
        conn.execute(CALL_CLOSE, &earlier).await?;
        let rows = conn.query(CALL_FIND, &earlier).await?;
        let mut carried = (!rows.is_empty()).then(|| Carried { whole: false, done: Vec::new() });
        for row in &rows {
            let mut row = row.fields(CALL_FIND.name);
            if let Some(carried) = &mut carried {
                carried.whole |= row.bool()?;
                carried.done.extend(row.int_or_null()?);
            }
        }
        Ok(carried)
    }
}

/// What a call did before its reply was lost.
pub(crate) struct Carried {
    whole: bool,
    done: Vec<i64>,
}

impl Carried {
    /// Whether the item at this place was done.
    pub(crate) fn has(&self, place: usize) -> bool {
        self.whole || self.done.contains(&(place as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All records since the process began were looked for every five minutes.
    #[test]
    fn records_are_removed_once_and_five_minutes_after_their_call_at_the_earliest() {
        let calls = Calls::default();
        let first = calls.next.load(Ordering::Relaxed);
        let mut removed = Vec::new();
        for round in 1..=4 {
            calls.next.fetch_add(10, Ordering::Relaxed);
            removed.push(calls.old(round * KEPT));
            assert!(calls.old(round * KEPT + KEPT - 1).is_empty(), "too early");
        }
        let range = |from: i64, to: i64| first + from..first + to;
        assert_eq!(removed, [range(0, 0), range(0, 10), range(10, 20), range(20, 30)]);
    }
}
