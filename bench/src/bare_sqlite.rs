//! Bare SQL on SQLite with rusqlite: WAL, `synchronous=FULL`, prepared statements.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior, params};

use crate::Result;
use crate::load::{Measured, Meter, payload};

const INSERT: &str = "insert into m (lane, leased_until, attempts, payload) values (1, 0, 0, ?1)";

fn open(path: &Path) -> Result<Connection> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.busy_timeout(Duration::from_secs(10))?;
    Ok(connection)
}

fn create(path: &Path) -> Result<Connection> {
    let connection = open(path)?;
    connection.execute_batch(
        "drop table if exists m;
         create table m (id integer primary key, lane int not null, leased_until int not null, attempts int not null,
             payload blob not null);
         create index m_lane on m (lane, id)",
    )?;
    Ok(connection)
}

/// One message per transaction, one connection.
pub(crate) fn insert_single(path: &Path, seconds: f64) -> Result<Measured> {
    let connection = create(path)?;
    let meter = Meter::new(Duration::from_secs_f64(seconds), u64::MAX);
    while meter.running() {
        let started = Instant::now();
        connection.prepare_cached(INSERT)?.execute([payload(meter.next()).into_bytes()])?;
        meter.latency(started.elapsed().as_micros() as u64);
        meter.done(1);
    }
    Ok(meter.measured())
}

/// Batches of 1000 prepared inserts, each batch one transaction.
pub(crate) fn insert_bulk(path: &Path, seconds: f64) -> Result<Measured> {
    let mut connection = create(path)?;
    let meter = Meter::new(Duration::from_secs_f64(seconds), u64::MAX);
    while meter.running() {
        insert_batch(&mut connection, &meter)?;
        meter.done(1000);
    }
    Ok(meter.measured())
}

fn insert_batch(connection: &mut Connection, meter: &Meter) -> Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut insert = transaction.prepare_cached(INSERT)?;
        for _ in 0..1000 {
            insert.execute([payload(meter.next()).into_bytes()])?;
        }
    }
    Ok(transaction.commit()?)
}

/// Claim, then delete: two transactions per batch.
pub(crate) fn drain(path: &Path, batch: i64, seconds: f64, messages: u64) -> Result<Measured> {
    let mut connection = create(path)?;
    let filler = Meter::new(Duration::MAX, u64::MAX);
    for _ in 0..messages / 1000 {
        insert_batch(&mut connection, &filler)?;
    }
    let meter = Meter::new(Duration::from_secs_f64(seconds), messages);
    while meter.running() {
        let ids: Vec<i64> = connection
            .prepare_cached(
                "update m set leased_until = ?2, attempts = attempts + 1 where id in (select id from m where lane = 1
                 and leased_until <= 1 order by id limit ?1) returning id, payload",
            )?
            .query_map(params![batch, 1000], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        if ids.is_empty() {
            break;
        }
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut delete = transaction.prepare_cached("delete from m where id = ?1")?;
            for id in &ids {
                delete.execute([id])?;
            }
        }
        transaction.commit()?;
        meter.done(ids.len());
    }
    Ok(meter.measured())
}
