//! Workers: processes that register, send heartbeats, and are fenced when they are gone.
//!
//! Invariants: a name has at most one incarnation that is not stopped; a stopped incarnation never becomes anything
//! else, and its heartbeat and its claims tell it so, also when its row has been removed; the id of an incarnation is never used again.

use std::time::Duration;

use crate::clock::{Clock, micros};
use crate::db::{Conn, decode};
use crate::error::{Error, Kind, Result};
use crate::ops::check_text;
use crate::ops::lifecycle::BATCH;
use crate::ops::queue::end_of_writers;
use crate::sql::*;
use crate::store::{Shared, Store};
use crate::types::{Heartbeat, Worker, WorkerStatus};
use crate::value::{Column, Fields, Value};

/// For how long claims that began before their worker was stopped are awaited; the leases of one that takes longer expire.
const PATIENCE: Duration = Duration::from_secs(5);

impl Store {
    /// Registers a process under a name. Earlier incarnations of that name are removed, and their leases are released:
    /// a crashed worker restarts at once, and gets its own messages back. An incarnation that still runs is told by its next
    /// heartbeat or claim, and can finish nothing that it holds.
    pub async fn worker_register(&self, name: &str, queue: Option<i64>) -> Result<Worker> {
        check_text("the worker's name", name, 512)?;
        loop {
            match self.register(name, queue).await {
                // Another process registered this name in the meantime, and is replaced now: of those that meet, one has won.
                Err(error) if error.kind() == Kind::AlreadyExists => {}
                registered => return registered,
            }
        }
    }

    async fn register(&self, name: &str, queue: Option<i64>) -> Result<Worker> {
        let (clock, name) = (self.clock().clone(), name.to_owned());
        let act = self.db().transact(move |conn| {
            Box::pin(async move {
                let rows = conn.query(WORKER_FENCE, &[name.as_str().into()]).await?;
                let stopped = decode(WORKER_FENCE, &rows, |row| row.int())?;
                let freed = release(conn, &stopped).await?;
                conn.execute(WORKER_FORGET, &[name.as_str().into()]).await?;
                let params = [clock.value(), name.as_str().into(), queue.into()];
                let rows = conn.query(WORKER_REGISTER, &params).await?;
                Ok((worker(&mut rows[0].fields(WORKER_REGISTER.name))?, stopped, freed))
            })
        });
        let (worker, stopped, freed) = act.await?;
        self.freed(&freed);
        self.release_late(stopped).await;
        Ok(worker)
    }

    /// A worker by its number.
    pub async fn worker_get(&self, id: i64) -> Result<Worker> {
        let found = self.db().read(move |conn| Box::pin(async move { get(conn, id).await })).await?;
        found.ok_or_else(|| missing(id))
    }

    /// Workers of one queue, or all; with `silent_for`, only those that should have been heard of since.
    pub async fn worker_list(&self, queue: Option<i64>, silent_for: Option<Duration>) -> Result<Vec<Worker>> {
        let params = [self.clock().value(), queue.into(), silent_for.map(micros).into()];
        self.db()
            .read(move |conn| {
                Box::pin(async move { decode(WORKER_LIST, &conn.query(WORKER_LIST, &params).await?, worker) })
            })
            .await
    }

    /// Says that these workers live. One answer each: a worker that was fenced must stop using its leases.
    pub async fn worker_heartbeat(&self, ids: &[i64]) -> Result<Vec<Heartbeat>> {
        let (clock, ids) = (self.clock().clone(), ids.to_vec());
        self.db().transact(move |conn| Box::pin(async move { heartbeat(conn, &clock, &ids).await })).await
    }

    /// Ready to suspended.
    pub async fn worker_suspend(&self, id: i64) -> Result<Worker> {
        self.change(id, Some(WorkerStatus::Ready), WorkerStatus::Suspended).await
    }

    /// Suspended to ready.
    pub async fn worker_resume(&self, id: i64) -> Result<Worker> {
        self.change(id, Some(WorkerStatus::Suspended), WorkerStatus::Ready).await
    }

    /// Anything but stopped to stopped; its leases are released in the same transaction.
    pub async fn worker_shutdown(&self, id: i64) -> Result<Worker> {
        let worker = self.change(id, None, WorkerStatus::Stopped).await?;
        self.release_late(vec![id]).await;
        Ok(worker)
    }

    async fn change(&self, id: i64, from: Option<WorkerStatus>, to: WorkerStatus) -> Result<Worker> {
        let params = [self.clock().value(), Value::Int(id), to.name().into(), from.map(WorkerStatus::name).into()];
        let act = self.db().transact(move |conn| {
            Box::pin(async move {
                let Some(row) = conn.query_opt(WORKER_CHANGE, &params).await? else {
                    let now = get(conn, id).await?.ok_or_else(|| missing(id))?;
                    let message = format!("worker {id} is {} and cannot become {}", now.status.name(), to.name());
                    return Err(Error::new(Kind::InvalidState, message));
                };
                let freed = if to == WorkerStatus::Stopped { release(conn, &[id]).await? } else { Vec::new() };
                Ok((worker(&mut row.fields(WORKER_CHANGE.name))?, freed))
            })
        });
        let (worker, freed) = act.await?;
        self.freed(&freed);
        Ok(worker)
    }

    /// Releases every lease of a worker. Returns how many messages are free again.
    pub async fn worker_release(&self, id: i64) -> Result<u64> {
        self.release_all(vec![id]).await
    }

    async fn release_all(&self, ids: Vec<i64>) -> Result<u64> {
        let freed = self.db().transact(move |conn| Box::pin(async move { release(conn, &ids).await })).await?;
        self.freed(&freed);
        Ok(freed.len() as u64)
    }

    /// Releases what claims of stopped workers have leased after the workers' other leases were released: a claim that began
    /// before has seen its worker ready. Claims pay nothing for this; a lock on the worker's row would be a write in every
    /// claim. Returns how many.
    async fn release_late(&self, ids: Vec<i64>) -> u64 {
        if ids.is_empty() {
            return 0;
        }
        let released = async {
            end_of_writers(self.db(), PATIENCE).await?;
            // Also when there are none: one may have ended between the stop and this look, and have left a lease: `triggers.rs` met that once.
            self.release_all(ids.clone()).await
        };
        released.await.unwrap_or_else(|error| {
            tracing::warn!(%error, workers = ?ids, "could not look for late leases of stopped workers; they expire");
            0
        })
    }

    /// Releases every lease of workers that should have been heard of within `silent_for` and were not, and stops them if
    /// wanted, in one transaction: a heartbeat comes before all of it or after. Who they were, and how many messages are
    /// free again.
    pub async fn worker_reap(&self, silent_for: Duration, stop: bool) -> Result<(Vec<i64>, u64)> {
        let (clock, silent_for) = (self.clock().clone(), Value::Int(micros(silent_for)));
        let act = self.db().transact(move |conn| {
            Box::pin(async move {
                let rows = conn.query(WORKER_STALE, &[clock.value(), silent_for]).await?;
                let stale = decode(WORKER_STALE, &rows, |row| row.int())?;
                for id in stale.iter().filter(|_| stop) {
                    let stopped = WorkerStatus::Stopped.name().into();
                    conn.query(WORKER_CHANGE, &[clock.value(), Value::Int(*id), stopped, Value::Null]).await?;
                }
                let freed = release(conn, &stale).await?;
                Ok((stale, freed))
            })
        });
        let (stale, freed) = act.await?;
        self.freed(&freed);
        let late = if stop { self.release_late(stale.clone()).await } else { 0 };
        Ok((stale, freed.len() as u64 + late))
    }

    /// How many messages a worker holds under a lease that still runs.
    pub async fn worker_held(&self, id: i64) -> Result<u64> {
        let params = [self.clock().value(), Value::Int(id)];
        self.db()
            .read(move |conn| {
                Box::pin(async move {
                    let rows = conn.query(WORKER_HELD, &params).await?;
                    Ok(u64::try_from(rows[0].fields(WORKER_HELD.name).int()?).unwrap_or(0))
                })
            })
            .await
    }

    /// Forgets workers that stopped at least this long ago. Returns how many.
    pub async fn worker_purge(&self, stopped_for: Duration) -> Result<u64> {
        let mut gone = 0;
        loop {
            let removed = self.remove_workers(stopped_for, None).await?;
            gone += removed;
            if removed < BATCH as u64 {
                return Ok(gone);
            }
        }
    }

    fn freed(&self, freed: &[(Option<i64>, i64)]) {
        for (id, lane) in freed {
            match id {
                Some(id) => self.ready(*lane, *id),
                None => self.ready_somewhere(*lane),
            }
        }
    }
}

impl Shared {
    /// Those of some workers that were stopped, or are not there any more.
    pub(crate) async fn stopped(&self, workers: Vec<i64>) -> Result<Vec<i64>> {
        let act = self.hub.db.read(move |conn| {
            Box::pin(async move {
                let ids: Column = workers.iter().copied().collect();
                let rows = conn.each(WORKER_ALIVE, &[], &[ids]).await?;
                let alive = decode(WORKER_ALIVE, &rows, |row| row.int())?;
                let is_stopped = |(n, _): &(usize, i64)| !alive.contains(&(*n as i64));
                Ok(workers.into_iter().enumerate().filter(is_stopped).map(|(_, worker)| worker).collect())
            })
        });
        act.await
    }
}

async fn heartbeat(conn: &mut Conn<'_>, clock: &Clock, ids: &[i64]) -> Result<Vec<Heartbeat>> {
    let column: Column = ids.iter().copied().collect();
    let rows = conn.each(WORKER_HEARTBEAT, &[clock.value()], &[column]).await?;
    let mut answers = vec![Heartbeat::Unknown; ids.len()];
    for n in decode(WORKER_HEARTBEAT, &rows, |row| row.int())? {
        answers[n as usize] = Heartbeat::Alive;
    }
    for (id, answer) in ids.iter().zip(&mut answers) {
        // A worker that was replaced or removed has no row any more, but a later one has a greater number.
        if *answer == Heartbeat::Unknown {
            let rows = conn.query(WORKER_KNOWN, &[Value::Int(*id)]).await?;
            if rows[0].fields(WORKER_KNOWN.name).bool()? {
                *answer = Heartbeat::Fenced;
            }
        }
    }
    Ok(answers)
}

/// Releases every lease of some workers: the positions and lanes of their messages, and for a key its lane alone.
async fn release(conn: &mut Conn<'_>, ids: &[i64]) -> Result<Vec<(Option<i64>, i64)>> {
    let mut freed = Vec::new();
    for id in ids {
        let rows = conn.query(WORKER_RELEASE_KEYS, &[Value::Int(*id)]).await?;
        freed.extend(decode(WORKER_RELEASE_KEYS, &rows, |row| Ok((None, row.int()?)))?);
        let rows = conn.query(WORKER_RELEASE, &[Value::Int(*id)]).await?;
        freed.extend(decode(WORKER_RELEASE, &rows, |row| Ok((Some(row.int()?), row.int()?)))?);
    }
    Ok(freed)
}

async fn get(conn: &mut Conn<'_>, id: i64) -> Result<Option<Worker>> {
    let row = conn.query_opt(WORKER_GET, &[Value::Int(id)]).await?;
    row.map(|row| worker(&mut row.fields(WORKER_GET.name))).transpose()
}

/// Why a worker's claim is refused.
pub(crate) fn worker_stopped(id: i64) -> Error {
    Error::new(Kind::WorkerStopped, format!("worker {id} was stopped and leases nothing: register again"))
}

fn missing(id: i64) -> Error {
    Error::new(Kind::NotFound, format!("there is no worker {id}: register first"))
}

fn worker(row: &mut Fields<'_>) -> Result<Worker> {
    let (id, name, queue, status) = (row.int()?, row.text()?, row.int_or_null()?, row.text()?);
    let status = match status.as_str() {
        "ready" => WorkerStatus::Ready,
        "suspended" => WorkerStatus::Suspended,
        "stopped" => WorkerStatus::Stopped,
        other => {
            let message = format!("worker.status of worker {id} is '{other}', which no version ever wrote");
            return Err(Error::new(Kind::Corrupt, message));
        }
    };
    let (started_at, heartbeat_at, stopped_at) = (row.int()?, row.int()?, row.int_or_null()?);
    Ok(Worker { id, name, queue, status, started_at, heartbeat_at, stopped_at })
}
