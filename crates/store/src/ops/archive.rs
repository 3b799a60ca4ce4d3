//! What is remembered of finished messages: look, count, replay the dead, forget the old.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::micros;
use crate::db::decode;
use crate::error::{Error, Kind, Result};
use crate::ops::finish::fence_columns;
use crate::ops::{reserve, rows, stored};
use crate::sql::*;
use crate::store::Store;
use crate::types::{Archived, Fence, Message, Micros, Outcome};
use crate::value::{Column, Fields, Value};

impl Store {
    /// The finished message with this identity.
    pub async fn archive_get(&self, id: i64) -> Result<Option<Archived>> {
        let params = [Value::Int(id)];
        self.db()
            .read(move |conn| {
                Box::pin(async move {
                    let row = conn.query_opt(ARCHIVE_GET, &params).await?;
                    row.map(|row| archived(&mut row.fields(ARCHIVE_GET.name))).transpose()
                })
            })
            .await
    }

    /// Finished messages of a queue, newest first, from `pivot` (time and identity, inclusive) downwards.
    pub async fn archive_list(
        &self,
        queue: i64,
        dead_only: bool,
        pivot: Option<(Micros, i64)>,
        limit: usize,
    ) -> Result<Vec<Archived>> {
        let (at, id) = pivot.unwrap_or((i64::MAX, i64::MAX));
        let found = self.db().read(move |conn| {
            Box::pin(async move {
                let mut found: Vec<Archived> = Vec::new();
                for outcome in OUTCOMES.iter().filter(|outcome| !dead_only || **outcome != Outcome::Completed) {
                    let outcome = outcome.name().into();
                    let params = [Value::Int(queue), outcome, Value::Int(at), Value::Int(id), rows(limit)];
                    found.extend(decode(ARCHIVE_LIST, &conn.query(ARCHIVE_LIST, &params).await?, archived)?);
                }
                Ok(found)
            })
        });
        let mut found = found.await?;
        found.sort_unstable_by_key(|archived| std::cmp::Reverse((archived.finished_at, archived.id)));
        found.truncate(limit);
        Ok(found)
    }

    /// Finished messages of all queues, newest first: of any outcome or only the dead, delivered at least `attempts`
    /// times, last held by `worker`.
    pub async fn archive_page(
        &self,
        dead_only: bool,
        attempts: i64,
        worker: Option<i64>,
        limit: i64,
        offset: i64,
    ) -> Result<Vec<Archived>> {
        let params =
            [Value::Bool(dead_only), Value::Int(attempts), worker.into(), Value::Int(limit), Value::Int(offset)];
        self.db()
            .read(move |conn| {
                Box::pin(async move { decode(ARCHIVE_PAGE, &conn.query(ARCHIVE_PAGE, &params).await?, archived) })
            })
            .await
    }

    /// How many those are.
    pub async fn archive_tally(&self, dead_only: bool, attempts: i64, worker: Option<i64>) -> Result<u64> {
        let params = [Value::Bool(dead_only), Value::Int(attempts), worker.into()];
        self.db()
            .read(move |conn| {
                Box::pin(async move {
                    let rows = conn.query(ARCHIVE_TALLY, &params).await?;
                    Ok(u64::try_from(rows[0].fields(ARCHIVE_TALLY.name).int()?).unwrap_or(0))
                })
            })
            .await
    }

    /// How many messages of a queue are dead, and how many finished ones are remembered in all.
    pub async fn archive_count(&self, queue: i64) -> Result<(u64, u64)> {
        let params = [Value::Int(queue)];
        self.db()
            .read(move |conn| {
                Box::pin(async move {
                    let rows = conn.query(ARCHIVE_COUNT, &params).await?;
                    let mut row = rows[0].fields(ARCHIVE_COUNT.name);
                    let mut count = || row.int().map(|count| u64::try_from(count).unwrap_or(0));
                    Ok((count()?, count()?))
                })
            })
            .await
    }

    /// Completes messages and keeps a copy of each: for the queue's `retain_completed`, and without one until
    /// [`archive_prune`](Store::archive_prune) is called with an age. The copies, in order; none for one that its fence no
    /// longer holds.
    pub async fn archive(&self, fences: &[Fence]) -> Result<Vec<Option<Archived>>> {
        let mut fences = fences.to_vec();
        let ids: Vec<i64> = fences.iter().map(|fence| fence.id).collect();
        // One order for everybody: two batches that share messages then cannot deadlock.
        fences.sort_unstable_by_key(|fence| fence.id);
        let fixed = [self.clock().value()];
        let act = self.db().write(move |conn| {
            Box::pin(async move {
                let rows = conn.each(MESSAGE_ARCHIVE, &fixed, &fence_columns(fences.iter())).await?;
                decode(MESSAGE_ARCHIVE, &rows, |row| Ok((row.int()?, archived(row)?)))
            })
        });
        let mut kept: HashMap<i64, Archived> = act.await?.into_iter().collect();
        Ok(ids.iter().map(|id| kept.remove(id)).collect())
    }

    /// Puts dead messages back at the tail of their lanes, ready, with fresh attempts and the same identity. One answer
    /// each, the message as it is now; none for one that is not dead: unknown, completed, replayed before, or of another
    /// queue than `queue`.
    pub async fn archive_replay(&self, queue: Option<i64>, ids: &[i64]) -> Result<Vec<Option<Message>>> {
        let column: Column = ids.iter().copied().collect();
        let count = ids.len();
        let fixed = [self.clock().value(), queue.into()];
        let act = self.db().transact(move |conn| {
            Box::pin(async move {
                if count == 0 {
                    return Ok(Vec::new());
                }
                let new = reserve(conn, count).await?;
                let rows = conn.each(ARCHIVE_REPLAY, &fixed, &[column, new]).await?;
                decode(ARCHIVE_REPLAY, &rows, stored)
            })
        });
        let mut replayed = HashMap::new();
        for message in act.await? {
            self.ready(message.lane, message.id);
            replayed.insert(message.identity(), message);
        }
        Ok(ids.iter().map(|id| replayed.remove(id)).collect())
    }

    /// The identities of a queue's dead messages, oldest first: all, or of one kind.
    pub async fn archive_dead(&self, queue: i64, kind: Option<&str>, limit: usize) -> Result<Vec<i64>> {
        let params = [Value::Int(queue), kind.into(), rows(limit)];
        self.db()
            .read(move |conn| {
                Box::pin(
                    async move { decode(ARCHIVE_DEAD, &conn.query(ARCHIVE_DEAD, &params).await?, |row| row.int()) },
                )
            })
            .await
    }

    /// Forgets one finished message of a queue. Whether there was one.
    pub async fn archive_delete(&self, queue: i64, id: i64) -> Result<bool> {
        let params = [Value::Int(queue), Value::Int(id)];
        let act = self.db().write(move |conn| Box::pin(async move { conn.execute(ARCHIVE_DELETE, &params).await }));
        Ok(act.await? > 0)
    }

    /// Forgets one batch of a queue's finished messages: those older than `age`, or than the queue's own retention; without
    /// either none.
    /// Returns how many; call it until it answers less than `limit`.
    pub async fn archive_prune(&self, queue: i64, age: Option<Duration>, limit: usize) -> Result<u64> {
        let clock = self.clock().value();
        let act = self.db().transact(move |conn| {
            Box::pin(async move {
                let mut removed = 0;
                for outcome in OUTCOMES {
                    let rest = limit.saturating_sub(usize::try_from(removed).unwrap_or(usize::MAX));
                    let outcome = outcome.name().into();
                    let params = [clock.clone(), Value::Int(queue), age.map(micros).into(), outcome, rows(rest)];
                    removed += conn.execute(ARCHIVE_PRUNE, &params).await?;
                }
                Ok(removed)
            })
        });
        act.await
    }
}

/// How messages end. Each has its own part of the archive's index.
const OUTCOMES: [Outcome; 3] = [Outcome::Completed, Outcome::Dead, Outcome::Expired];

fn archived(row: &mut Fields<'_>) -> Result<Archived> {
    Ok(Archived {
        id: row.int()?,
        queue: row.int()?,
        lane: row.int()?,
        outcome: outcome(&row.text()?)?,
        reason: row.text_or_null()?,
        worker: row.int_or_null()?,
        leased_at: row.int_or_null()?,
        attempts: row.int()?,
        max_attempts: row.int_or_null()?,
        created_at: row.int()?,
        finished_at: row.int()?,
        expire_at: row.int_or_null()?,
        key: row.text_or_null()?,
        kind: row.text_or_null()?,
        encoding: row.text_or_null()?,
        reference: row.text_or_null()?,
        producer: row.int_or_null()?,
        payload: row.bytes()?,
    })
}

fn outcome(name: &str) -> Result<Outcome> {
    match name {
        "completed" => Ok(Outcome::Completed),
        "dead" => Ok(Outcome::Dead),
        "expired" => Ok(Outcome::Expired),
        other => Err(Error::new(Kind::Corrupt, format!("archive.outcome is '{other}', which no version ever wrote"))),
    }
}
