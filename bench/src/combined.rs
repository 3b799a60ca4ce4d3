//! Bare SQL with single calls merged in the process: what group commit can do without anything around it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::Result;
use crate::bare::{CLAIM, DELETE, INSERT_MANY, connect, finish, reset};
use crate::load::{Measured, Meter, Paced, made_at, payload};

/// How far below the lowest position of a claim the next one begins, for messages that were committed late.
const BEHIND: i64 = 2000;

type Insert = (Vec<u8>, oneshot::Sender<()>);
type Claim = oneshot::Sender<Option<(i64, u64)>>;
type Delete = (i64, oneshot::Sender<()>);

/// Two connections that insert, one that claims and one that deletes.
#[derive(Clone)]
pub(crate) struct Combined {
    inserts: mpsc::Sender<Insert>,
    claims: mpsc::Sender<Claim>,
    deletes: mpsc::Sender<Delete>,
}

impl Combined {
    /// `remember` starts each claim near where the last one found something, with a full scan every second.
    pub(crate) async fn connect(dsn: &str, remember: bool) -> Result<Self> {
        let (inserts, inbox) = mpsc::channel::<Insert>(10_000);
        let inbox = Arc::new(tokio::sync::Mutex::new(inbox));
        for _ in 0..2 {
            tokio::spawn(insert(connect(dsn).await?, inbox.clone()));
        }
        let (claims, inbox) = mpsc::channel(10_000);
        tokio::spawn(claim(connect(dsn).await?, inbox, remember));
        let (deletes, inbox) = mpsc::channel(10_000);
        tokio::spawn(delete(connect(dsn).await?, inbox));
        Ok(Combined { inserts, claims, deletes })
    }

    async fn insert(&self, payload: String) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.inserts.send((payload.into_bytes(), reply)).await?;
        Ok(answer.await?)
    }

    /// The id of a message, and when it was made.
    async fn claim(&self) -> Result<Option<(i64, u64)>> {
        let (reply, answer) = oneshot::channel();
        self.claims.send(reply).await?;
        Ok(answer.await?)
    }

    async fn delete(&self, id: i64) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.deletes.send((id, reply)).await?;
        Ok(answer.await?)
    }
}

async fn insert(client: Client, inbox: Arc<tokio::sync::Mutex<mpsc::Receiver<Insert>>>) -> Result<()> {
    let insert = client.prepare(INSERT_MANY).await?;
    let mut jobs = Vec::new();
    while inbox.lock().await.recv_many(&mut jobs, 1000).await > 0 {
        let (payloads, replies): (Vec<Vec<u8>>, Vec<_>) = jobs.drain(..).unzip();
        client.query(&insert, &[&1i64, &payloads]).await?;
        answer(replies);
    }
    Ok(())
}

async fn claim(client: Client, mut inbox: mpsc::Receiver<Claim>, remember: bool) -> Result<()> {
    let claim = client.prepare(CLAIM).await?;
    let (mut from, mut full) = (0i64, Instant::now());
    let mut jobs = Vec::new();
    while inbox.recv_many(&mut jobs, 500).await > 0 {
        if !remember || full.elapsed() > Duration::from_secs(1) {
            (from, full) = (0, Instant::now());
        }
        let rows = client.query(&claim, &[&1i64, &(jobs.len() as i64), &from]).await?;
        let mut found = rows.iter().map(|row| (row.get::<_, i64>(0), made_at(row.get(1))));
        from = rows.iter().map(|row| row.get::<_, i64>(0)).min().map_or(from, |least| (least - BEHIND).max(0));
        for reply in jobs.drain(..) {
            reply.send(found.next()).ok();
        }
    }
    Ok(())
}

async fn delete(client: Client, mut inbox: mpsc::Receiver<Delete>) -> Result<()> {
    let delete = client.prepare(DELETE).await?;
    let mut jobs = Vec::new();
    while inbox.recv_many(&mut jobs, 1000).await > 0 {
        let (ids, replies): (Vec<i64>, Vec<_>) = jobs.drain(..).unzip();
        client.execute(&delete, &[&ids]).await?;
        answer(replies);
    }
    Ok(())
}

fn answer(replies: Vec<oneshot::Sender<()>>) {
    for reply in replies {
        reply.send(()).ok();
    }
}

/// Single inserts by concurrent callers.
pub(crate) async fn insert_single(dsn: &str, callers: usize, seconds: f64) -> Result<Measured> {
    reset(dsn, 0).await?;
    let combined = Combined::connect(dsn, false).await?;
    let meter = Meter::new(Duration::from_secs_f64(seconds), u64::MAX);
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (meter, combined) = (meter.clone(), combined.clone());
        tasks.spawn(async move {
            while meter.running() {
                let started = Instant::now();
                combined.insert(payload(meter.next())).await?;
                meter.latency(started.elapsed().as_micros() as u64);
                meter.done(1);
            }
            Result::Ok(())
        });
    }
    finish(tasks).await?;
    Ok(meter.measured())
}

/// Single claims and single deletes of a backlog.
pub(crate) async fn drain(dsn: &str, consumers: usize, seconds: f64, messages: u64) -> Result<Measured> {
    let combined = Combined::connect(dsn, false).await?;
    let meter = Meter::new(Duration::from_secs_f64(seconds), messages);
    let mut tasks = JoinSet::new();
    for _ in 0..consumers {
        let (meter, combined) = (meter.clone(), combined.clone());
        tasks.spawn(async move {
            while meter.running() {
                let Some((id, _)) = combined.claim().await? else { break };
                combined.delete(id).await?;
                meter.done(1);
            }
            Result::Ok(())
        });
    }
    finish(tasks).await?;
    Ok(meter.measured())
}

/// Producers and consumers at a pace, or as fast as they can; consumers that find nothing ask again a millisecond later.
pub(crate) async fn paced(dsn: &str, paced: Paced) -> Result<Measured> {
    reset(dsn, 0).await?;
    let combined = Combined::connect(dsn, true).await?;
    let produce = {
        let combined = combined.clone();
        move |n| {
            let combined = combined.clone();
            async move { combined.insert(payload(n)).await }
        }
    };
    let consume = move |meter: Arc<Meter>| {
        let combined = combined.clone();
        async move {
            let Some((id, made)) = combined.claim().await? else {
                tokio::time::sleep(Duration::from_millis(1)).await;
                return Ok(());
            };
            meter.since(made);
            combined.delete(id).await?;
            meter.done(1);
            Ok(())
        }
    };
    paced.run(produce, consume).await
}
