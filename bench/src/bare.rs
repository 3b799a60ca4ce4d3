//! Bare SQL on PostgreSQL: design t1 of the field study. No retries, keys, dead letters or checks: a ceiling.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls, Statement};

use crate::Result;
use crate::load::{Measured, Meter, now, payload};

const TABLE: &str = "drop schema if exists bare cascade; create schema bare;
    create table bare.m (id bigserial primary key, lane bigint not null, leased_until bigint not null default 0,
        attempts int not null default 0, created_at timestamptz not null default now(), payload bytea not null)
        with (fillfactor = 50);
    create index on bare.m (lane, id)";
const INSERT: &str = "insert into bare.m (lane, payload) values ($1, $2) returning id";
pub(crate) const INSERT_MANY: &str = "insert into bare.m (lane, payload) select $1, unnest($2::bytea[]) returning id";
pub(crate) const CLAIM: &str =
    "update bare.m set leased_until = (extract(epoch from now()) * 1000000)::bigint + 60000000,
        attempts = attempts + 1
    where ctid = any (array(select ctid from bare.m where lane = $1 and id >= $3
        and leased_until <= (extract(epoch from now()) * 1000000)::bigint order by id limit $2 for update skip locked))
    returning id, payload";
pub(crate) const DELETE: &str = "delete from bare.m where id = any ($1)";
/// Keeps plans on their indexes while the table is empty.
const PIN: &str = "set enable_seqscan = off; set enable_bitmapscan = off; set enable_sort = off";

pub(crate) async fn connect(dsn: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            eprintln!("bare connection: {error}");
        }
    });
    client.batch_execute(PIN).await?;
    Ok(client)
}

/// An empty table, or one with a backlog.
pub(crate) async fn reset(dsn: &str, backlog: u64) -> Result<()> {
    let client = connect(dsn).await?;
    client.batch_execute(TABLE).await?;
    let insert = client.prepare(INSERT_MANY).await?;
    for batch in 0..backlog / 1000 {
        let payloads: Vec<Vec<u8>> = (0..1000).map(|n| payload(batch * 1000 + n).into_bytes()).collect();
        client.execute(&insert, &[&1i64, &payloads]).await?;
    }
    client.batch_execute("analyze bare.m; checkpoint").await?;
    Ok(())
}

/// Write-ahead log so far, in bytes.
pub(crate) async fn wal(dsn: &str) -> Result<f64> {
    let row = connect(dsn).await?.query_one("select (pg_current_wal_lsn() - '0/0')::float8", &[]).await?;
    Ok(row.get(0))
}

/// One message per statement and transaction, on a connection for each caller.
pub(crate) async fn insert_single(dsn: &str, callers: usize, seconds: f64) -> Result<Measured> {
    reset(dsn, 0).await?;
    let mut clients = Vec::new();
    for _ in 0..callers {
        let client = connect(dsn).await?;
        let insert = client.prepare(INSERT).await?;
        clients.push((client, insert));
    }
    let meter = Meter::new(Duration::from_secs_f64(seconds), u64::MAX);
    let mut tasks = JoinSet::new();
    for (client, insert) in clients {
        let meter = meter.clone();
        tasks.spawn(async move {
            while meter.running() {
                let started = Instant::now();
                client.query_one(&insert, &[&1i64, &payload(meter.next()).into_bytes()]).await?;
                meter.latency(started.elapsed().as_micros() as u64);
                meter.done(1);
            }
            Result::Ok(())
        });
    }
    finish(tasks).await?;
    Ok(meter.measured())
}

/// Batches of 1000, one connection.
pub(crate) async fn insert_bulk(dsn: &str, seconds: f64) -> Result<Measured> {
    reset(dsn, 0).await?;
    let client = connect(dsn).await?;
    let insert = client.prepare(INSERT_MANY).await?;
    let meter = Meter::new(Duration::from_secs_f64(seconds), u64::MAX);
    while meter.running() {
        let payloads: Vec<Vec<u8>> = (0..1000).map(|_| payload(meter.next()).into_bytes()).collect();
        client.query(&insert, &[&1i64, &payloads]).await?;
        meter.done(1000);
    }
    Ok(meter.measured())
}

/// Claim, then delete: two statements per batch, a connection for each consumer. `remember` starts each claim where the
/// last one was, with a full scan every second.
pub(crate) async fn drain(
    dsn: &str,
    consumers: usize,
    batch: i64,
    seconds: f64,
    messages: u64,
    remember: bool,
) -> Result<Measured> {
    let mut clients = Vec::new();
    for _ in 0..consumers {
        let client = connect(dsn).await?;
        let (claim, delete) = (client.prepare(CLAIM).await?, client.prepare(DELETE).await?);
        clients.push((client, claim, delete));
    }
    let wal_before = wal(dsn).await?;
    let meter = Meter::new(Duration::from_secs_f64(seconds), messages);
    let mut tasks = JoinSet::new();
    for (client, claim, delete) in clients {
        let meter = meter.clone();
        tasks.spawn(async move {
            let mut from = 0i64;
            let mut full = Instant::now();
            while meter.running() {
                if !remember || full.elapsed() > Duration::from_secs(1) {
                    (from, full) = (0, Instant::now());
                }
                let rows = client.query(&claim, &[&1i64, &batch, &from]).await?;
                let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
                if ids.is_empty() {
                    break;
                }
                from = ids.iter().min().copied().unwrap_or(0).saturating_sub(2000).max(0);
                client.execute(&delete, &[&ids]).await?;
                meter.done(ids.len());
            }
            Result::Ok(())
        });
    }
    finish(tasks).await?;
    let mut measured = meter.measured();
    measured.wal = (wal(dsn).await? - wal_before) / meter.count().max(1) as f64;
    Ok(measured)
}

/// Waits for all tasks; the first failure ends the measurement.
pub(crate) async fn finish(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(())
}

/// Bare SQL for an idle process, every statement prepared once.
pub(crate) struct Idle {
    client: Client,
    insert: Statement,
    insert_and_notify: Statement,
    claim: Statement,
    delete: Statement,
}

impl Idle {
    pub(crate) async fn connect(dsn: &str) -> Result<Self> {
        let client = connect(dsn).await?;
        let notify = "with i as (insert into bare.m (lane, payload) values ($1, $2) returning id)
            select id, pg_notify('bare', '') from i";
        Ok(Idle {
            insert: client.prepare(INSERT).await?,
            insert_and_notify: client.prepare(notify).await?,
            claim: client.prepare(CLAIM).await?,
            delete: client.prepare(DELETE).await?,
            client,
        })
    }

    /// Inserts one message.
    pub(crate) async fn insert(&self) -> Result<()> {
        self.client.query_one(&self.insert, &[&1i64, &payload(0).into_bytes()]).await?;
        Ok(())
    }

    /// Inserts one message and notifies in the same transaction.
    pub(crate) async fn insert_and_notify(&self) -> Result<()> {
        self.client.query_one(&self.insert_and_notify, &[&1i64, &payload(0).into_bytes()]).await?;
        Ok(())
    }

    /// Claims everything that is there and returns how long each took to arrive.
    pub(crate) async fn claim_and_delete(&self) -> Result<Vec<u64>> {
        let rows = self.client.query(&self.claim, &[&1i64, &10i64, &0i64]).await?;
        let seen = now();
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        self.client.execute(&self.delete, &[&ids]).await?;
        Ok(rows.iter().map(|row| seen.saturating_sub(crate::load::made_at(row.get(1)))).collect())
    }
}
