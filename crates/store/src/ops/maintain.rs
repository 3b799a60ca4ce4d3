//! Housekeeping: removes rows that no longer mean anything, in bounded batches, by one process per store at a time.
//!
//! Invariants: every batch is one transaction, and any number of processes may run the same batch at the same time without
//! harm; the turn of [`Store::maintain_in_turn`] is a row with a deadline on the database's clock, so no transaction stays
//! open and a process that ends is replaced; nothing that leases depend on happens here.

use std::time::{Duration, Instant};

use rand::Rng as _;

use crate::calls;
use crate::clock::micros;
use crate::error::{Error, Kind, Result};
use crate::ops::lifecycle::BATCH;
use crate::sql::*;
use crate::store::Store;
use crate::types::{Maintenance, Queue};
use crate::value::Value;

/// How long a turn lasts after it was taken or renewed: no other process does a round before that.
const TURN: Duration = Duration::from_secs(45);
/// How often a process that is still at work renews its turn.
const RENEW: Duration = Duration::from_secs(10);
/// After which time a stopped worker is removed: operators see for a while that it was there.
const STOPPED: Duration = Duration::from_secs(3600);
/// After which time a worker that sends no heartbeat is removed. Long: a computer may have slept.
const SILENT: Duration = Duration::from_secs(86_400);
/// Between two batches, so that other work of the database gets its turn.
const PAUSE: Duration = Duration::from_millis(10);
/// Queues that are listed at once.
const PAGE: usize = 100;

impl Store {
    /// One round of housekeeping, now: in every queue as [`maintain_queue`](Store::maintain_queue), and of the whole store
    /// dedupe keys whose window has passed and whose messages are gone, records of calls of processes that ended, workers that
    /// stopped an hour ago, workers that sent no heartbeat for a day, and what late transactions have stored in queues that were
    /// deleted before they committed. When one queue fails the round goes on with the others,
    /// and ends with the first error.
    pub async fn maintain(&self) -> Result<Maintenance> {
        self.maintain_as(&mut Turn { token: None, renewed: Instant::now() }).await
    }

    /// The same unless another process, or this one, did it within the last 45 s: none then. Cheap when it is not due, so call
    /// it about every minute.
    pub async fn maintain_in_turn(&self) -> Result<Option<Maintenance>> {
        match self.take_turn().await? {
            Some(mut turn) => self.maintain_as(&mut turn).await.map(Some),
            None => Ok(None),
        }
    }

    /// Housekeeping in one queue: buries what has expired or run out of attempts, sends lapsed leases to the tail where the
    /// queue wants it, removes finished messages as the queue's retention says, and rows of keys without messages.
    pub async fn maintain_queue(&self, queue: &Queue) -> Result<Maintenance> {
        let mut done = Maintenance::default();
        self.maintain_one(queue, &mut Turn { token: None, renewed: Instant::now() }, &mut done).await?;
        Ok(done)
    }

    /// Removes dedupe keys and records of calls that no longer mean anything. Returns how many dedupe keys.
    pub async fn forget(&self) -> Result<u64> {
        let mut done = Maintenance::default();
        self.forget_as(&mut Turn { token: None, renewed: Instant::now() }, &mut done).await?;
        Ok(done.dedupe_keys)
    }

    /// Removes the dedupe keys of a queue whose messages are gone. Returns how many.
    pub async fn dedupe_clear(&self, queue: i64) -> Result<u64> {
        let mut gone = 0;
        loop {
            let params = [Value::Int(queue), Value::Int(BATCH as i64)];
            let batch = self.execute(DEDUPE_CLEAR, params.to_vec()).await?;
            gone += batch;
            if batch < BATCH as u64 {
                return Ok(gone);
            }
        }
    }

    async fn maintain_as(&self, turn: &mut Turn) -> Result<Maintenance> {
        let mut done = Maintenance::default();
        let mut failed = None;
        // The orphans come last: a probe may walk the dead index entries of a queue that was deleted just now.
        if self.maintain_queues(turn, &mut done, &mut failed).await?
            && self.forget_as(turn, &mut done).await?
            && self.forget_workers(turn, &mut done).await?
        {
            self.remove_orphans(turn, &mut done).await?;
        }
        failed.map_or(Ok(done), Err)
    }

    /// Whether the turn was kept.
    async fn forget_workers(&self, turn: &mut Turn, done: &mut Maintenance) -> Result<bool> {
        while self.keep_turn(turn).await? {
            let removed = self.remove_workers(STOPPED, Some(SILENT)).await?;
            done.workers += removed;
            if removed < BATCH as u64 {
                return Ok(true);
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(false)
    }

    /// Removes what belongs to a lane or queue that does not exist. The deletion of a queue waits for such transactions itself;
    /// here are those that committed when the process that deleted the queue had ended.
    async fn remove_orphans(&self, turn: &mut Turn, done: &mut Maintenance) -> Result<()> {
        let before = done.orphans;
        for statement in [MESSAGE_ORPHANS, SCHEDULED_ORPHANS, KEY_ORPHANS, ARCHIVE_ORPHANS] {
            let batch = [Value::Int(BATCH as i64)];
            let Some(removed) = self.remove_all(turn, statement, &batch).await? else { break };
            done.orphans += removed;
        }
        if done.orphans > before {
            let rows = done.orphans - before;
            tracing::info!(
                rows,
                "removed what transactions had stored in queues that were deleted before they committed"
            );
        }
        Ok(())
    }

    /// Housekeeping in every queue. The first error that concerns one queue is left in `failed`: it keeps no other queue from
    /// its housekeeping. Whether the turn was kept.
    async fn maintain_queues(
        &self,
        turn: &mut Turn,
        done: &mut Maintenance,
        failed: &mut Option<Error>,
    ) -> Result<bool> {
        let mut pivot = String::new();
        loop {
            let queues = self.queue_list(&pivot, None, PAGE).await?;
            for queue in &queues {
                match self.maintain_one(queue, turn, done).await {
                    Ok(true) => {}
                    Ok(false) => return Ok(false),
                    Err(error) if error.kind() == Kind::Unavailable => return Err(error),
                    Err(error) => {
                        tracing::warn!(%error, queue = %queue.name, "housekeeping of a queue failed; going on with the others");
                        failed.get_or_insert(error);
                    }
                }
            }
            match queues.last().filter(|_| queues.len() == PAGE) {
                // The least name behind this one: no name holds a NUL.
                Some(last) => pivot = format!("{}\u{1}", last.name),
                None => return Ok(true),
            }
        }
    }

    /// Whether the turn was kept.
    async fn maintain_one(&self, queue: &Queue, turn: &mut Turn, done: &mut Maintenance) -> Result<bool> {
        for lane in &queue.lanes {
            let mut walked = self.tend(&[(*lane, 0)]).await?.remove(0)?;
            while walked > 0 {
                if !self.keep_turn(turn).await? {
                    return Ok(false);
                }
                walked = self.tend(&[(*lane, walked)]).await?.remove(0)?;
            }
            let params = [self.clock().value(), Value::Int(*lane), Value::Int(BATCH as i64)];
            let Some(keys) = self.remove_all(turn, KEY_PRUNE, &params).await? else { return Ok(false) };
            done.keys += keys;
        }
        loop {
            let removed = self.archive_prune(queue.id, None, BATCH).await?;
            done.archived += removed;
            if !self.keep_turn(turn).await? {
                return Ok(false);
            }
            if removed < BATCH as u64 {
                return Ok(true);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Whether the turn was kept.
    async fn forget_as(&self, turn: &mut Turn, done: &mut Maintenance) -> Result<bool> {
        let mut after = 0;
        // Keys whose messages live are stepped over, and each of them only once in a round.
        while let Some(upto) = self.dedupe_window(after).await? {
            let params = [Value::Int(after), Value::Int(upto), Value::Int(BATCH as i64)];
            let Some(keys) = self.remove_all(turn, DEDUPE_PRUNE, &params).await? else { return Ok(false) };
            done.dedupe_keys += keys;
            after = upto;
            tokio::time::sleep(PAUSE).await;
        }
        let mut after = -1;
        while let Some((upto, calls)) = calls::forget(self.db(), self.clock().value(), after).await? {
            done.calls += calls;
            after = upto;
            if !self.keep_turn(turn).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn dedupe_window(&self, after: i64) -> Result<Option<i64>> {
        let params = [self.clock().value(), Value::Int(after), Value::Int(BATCH as i64)];
        self.db()
            .read(move |conn| {
                Box::pin(async move {
                    let rows = conn.query(DEDUPE_WINDOW, &params).await?;
                    rows[0].fields(DEDUPE_WINDOW.name).int_or_null()
                })
            })
            .await
    }

    /// Runs a statement that removes up to [`BATCH`] rows until it finds no more. How many; none: the turn was lost.
    async fn remove_all(&self, turn: &mut Turn, statement: Statement, params: &[Value]) -> Result<Option<u64>> {
        let mut removed = 0;
        loop {
            let batch = self.execute(statement, params.to_vec()).await?;
            removed += batch;
            if !self.keep_turn(turn).await? {
                return Ok(None);
            }
            if batch < BATCH as u64 {
                return Ok(Some(removed));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn execute(&self, statement: Statement, params: Vec<Value>) -> Result<u64> {
        self.db().write(move |conn| Box::pin(async move { conn.execute(statement, &params).await })).await
    }

    /// One batch of workers that stopped so long ago, or were not heard of for so long. How many.
    pub(crate) async fn remove_workers(&self, stopped_for: Duration, silent_for: Option<Duration>) -> Result<u64> {
        let (stopped, silent) = (Value::Int(micros(stopped_for)), silent_for.map(micros).into());
        self.execute(WORKER_PURGE, vec![self.clock().value(), stopped, silent, Value::Int(BATCH as i64)]).await
    }

    async fn take_turn(&self) -> Result<Option<Turn>> {
        let turn = Turn { token: Some(rand::rng().random_range(1..i64::MAX)), renewed: Instant::now() };
        Ok(self.set_turn(HOUSEKEEPING_TAKE, turn.token).await?.then_some(turn))
    }

    /// Renews the turn when that is due. False: another process has it now.
    async fn keep_turn(&self, turn: &mut Turn) -> Result<bool> {
        if turn.token.is_none() || turn.renewed.elapsed() < RENEW {
            return Ok(true);
        }
        turn.renewed = Instant::now();
        let kept = self.set_turn(HOUSEKEEPING_RENEW, turn.token).await?;
        if !kept {
            tracing::info!("another process took over the housekeeping of this store");
        }
        Ok(kept)
    }

    async fn set_turn(&self, statement: Statement, token: Option<i64>) -> Result<bool> {
        let params = [self.clock().value(), token.into(), Value::Int(micros(TURN))];
        let act = self.db().write(move |conn| Box::pin(async move { conn.query_opt(statement, &params).await }));
        Ok(act.await?.is_some())
    }
}

/// The right to do the housekeeping of a store.
struct Turn {
    /// What it is held under; none for a round that an operator asked for, which takes no turn.
    token: Option<i64>,
    renewed: Instant,
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;
    use crate::{Claim, Clock, NewMessage, Settings};

    #[tokio::test]
    async fn a_turn_is_renewed_while_it_is_held_and_ends_when_another_process_took_it() {
        let clock = Clock::fixed(1_000_000);
        let store = Store::connect_with_clock(":memory:", clock.clone()).await.unwrap();
        store.install().await.unwrap();
        let mut turn = store.take_turn().await.unwrap().unwrap();
        let due = |turn: &mut Turn| turn.renewed = Instant::now().checked_sub(RENEW).unwrap();
        clock.advance(TURN - Duration::from_secs(1));
        assert!(store.keep_turn(&mut turn).await.unwrap(), "not yet due, and not written");
        due(&mut turn);
        assert!(store.keep_turn(&mut turn).await.unwrap());
        clock.advance(TURN - Duration::from_micros(1));
        assert!(store.take_turn().await.unwrap().is_none(), "it was renewed");
        clock.advance(Duration::from_micros(1));
        assert!(store.take_turn().await.unwrap().is_some());
        due(&mut turn);
        assert!(!store.keep_turn(&mut turn).await.unwrap());
    }

    #[tokio::test]
    async fn a_queue_that_fails_keeps_no_other_from_its_housekeeping() {
        let clock = Clock::fixed(1_000_000);
        let store = Store::connect_with_clock(":memory:", clock.clone()).await.unwrap();
        store.install().await.unwrap();
        let settings = || Settings { retain_completed: Some(Duration::from_secs(1)), ..Settings::default() };
        let mut queues = Vec::new();
        for name in ["a", "b", "c"] {
            let queue = store.queue_create(name, settings()).await.unwrap();
            store.enqueue(&queue, None, vec![NewMessage::new("x")]).await.unwrap();
            let taken = store.claim(Claim::from_queue(&queue, 1)).await.unwrap();
            store.complete(&[taken[0].fence()]).await.unwrap();
            queues.push(queue);
        }
        let breaks = format!(
            "create trigger broken before delete on tenure_archive when old.queue = {} \
             begin select raise(abort, 'broken'); end",
            queues[1].id
        );
        store.db().script(breaks).await.unwrap();
        clock.advance(Duration::from_secs(2));
        let error = store.maintain().await.unwrap_err();
        assert!(format!("{error:?}").contains("broken"), "{error:?}");
        let mut kept = Vec::new();
        for queue in &queues {
            kept.push(store.archive_count(queue.id).await.unwrap().1);
        }
        assert_eq!(kept, [0, 1, 0]);
    }
}
