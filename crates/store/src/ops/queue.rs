//! Queues: create, look up, change, pause, delete with everything in them.

use std::collections::HashSet;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::micros;
use crate::db::{Conn, Db, decode};
use crate::error::{Error, Kind, Result, invalid};
use crate::ops::{check_text, rows};
use crate::sql::*;
use crate::store::Store;
use crate::types::{Micros, Queue, Settings};
use crate::value::{Column, Fields, Value};

/// More lanes than this is a mistake, not a plan.
const MAX_PARTITIONS: u32 = 10_000;
/// How long a deletion waits for transactions that may have stored messages in its queue.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it rests after an outage of the database.
const RETRY: Duration = Duration::from_secs(1);

impl Store {
    /// Creates a queue. A name that is taken is an error, and changes nothing.
    pub async fn queue_create(&self, name: &str, settings: Settings) -> Result<Queue> {
        let lanes = settings.partitions;
        self.queue_create_part(name, settings, lanes).await
    }

    /// The same for a queue of whose partitions only so many are here: see [`Settings::placement`].
    pub async fn queue_create_part(&self, name: &str, settings: Settings, lanes: u32) -> Result<Queue> {
        check(name, &settings)?;
        let clock = self.clock().clone();
        let owned = name.to_owned();
        let created = self.db().transact(move |conn| {
            Box::pin(async move {
                find_dead_queue(conn, &owned, &settings).await?;
                let mut params = vec![clock.value(), owned.as_str().into(), settings.namespace.as_str().into()];
                params.push(Value::Int(settings.partitions.into()));
                params.extend(changeable(&settings));
                params.push(settings.placement.as_str().into());
                params.push(Value::Int(lanes.into()));
                let rows = conn.query(QUEUE_CREATE, &params).await?;
                let mut fields = rows[0].fields(QUEUE_CREATE.name);
                let (id, created_at) = (fields.int()?, fields.int()?);
                let partitions: Column = (0..i64::from(lanes)).collect();
                let rows = conn.each(LANE_CREATE, &[Value::Int(id)], &[partitions]).await?;
                let lanes = decode(LANE_CREATE, &rows, |row| row.int())?;
                conn.execute(LANE_CONFIGURE, &[Value::Int(id)]).await?;
                let (name, paused_at, updated_at) = (owned, None, created_at);
                Ok(Queue { id, name, settings, paused_at, created_at, updated_at, lanes })
            })
        });
        created.await.map_err(|error| match error.kind() {
            Kind::AlreadyExists => {
                Error::new(Kind::AlreadyExists, format!("a queue named '{name}' already exists")).with_source(error)
            }
            _ => error,
        })
    }

    /// The queue of that name.
    pub async fn queue_get(&self, name: &str) -> Result<Queue> {
        let owned = name.to_owned();
        let found = self.db().read(move |conn| Box::pin(async move { get(conn, &owned).await })).await?;
        found.ok_or_else(|| missing(name))
    }

    /// Queues by name, from the first one at or after `pivot`, of one namespace or of all.
    pub async fn queue_list(&self, pivot: &str, namespace: Option<&str>, limit: usize) -> Result<Vec<Queue>> {
        let params = [pivot.into(), namespace.into(), rows(limit)];
        self.db()
            .read(move |conn| {
                Box::pin(async move {
                    let rows = conn.query(QUEUE_LIST, &params).await?;
                    let rows = decode(QUEUE_LIST, &rows, |row| Ok((queue(row)?, row.int_or_null()?)))?;
                    let mut queues: Vec<Queue> = Vec::new();
                    for (queue, lane) in rows {
                        if queues.last().is_none_or(|last| last.id != queue.id) {
                            queues.push(queue);
                        }
                        if let (Some(last), Some(lane)) = (queues.last_mut(), lane) {
                            last.lanes.push(lane);
                        }
                    }
                    Ok(queues)
                })
            })
            .await
    }

    /// Replaces a queue's settings, all but its namespace, its number of partitions and its placement, which stay as they were
    /// made whatever is given.
    pub async fn queue_update(&self, name: &str, settings: Settings) -> Result<Queue> {
        self.queue_update_from(name, settings, None).await?.ok_or_else(|| missing(name))
    }

    /// Changes some of a queue's settings and leaves the others as they are, also those that another process changes at the
    /// same time: `change` is then called again, with its outcome. A change of the namespace, the number of partitions or the
    /// placement is `InvalidInput`, and nothing is changed: they are fixed at creation.
    pub async fn queue_change(&self, name: &str, change: impl Fn(&mut Settings)) -> Result<Queue> {
        loop {
            let Queue { settings: before, updated_at, .. } = self.queue_get(name).await?;
            let mut settings = before.clone();
            change(&mut settings);
            check_fixed(name, &before, &settings)?;
            if let Some(queue) = self.queue_update_from(name, settings, Some(updated_at)).await? {
                return Ok(queue);
            }
        }
    }

    /// None: there is no such queue, or it is not as it was `updated_at` this time.
    async fn queue_update_from(
        &self,
        name: &str,
        settings: Settings,
        updated_at: Option<Micros>,
    ) -> Result<Option<Queue>> {
        check(name, &settings)?;
        let clock = self.clock().clone();
        let owned = name.to_owned();
        let updated = self.db().transact(move |conn| {
            Box::pin(async move {
                find_dead_queue(conn, &owned, &settings).await?;
                let mut params = vec![clock.value(), owned.as_str().into()];
                params.extend(changeable(&settings));
                params.push(updated_at.into());
                let Some(row) = conn.query_opt(QUEUE_UPDATE, &params).await? else { return Ok(None) };
                let id = row.fields(QUEUE_UPDATE.name).int()?;
                conn.execute(LANE_CONFIGURE, &[Value::Int(id)]).await?;
                get(conn, &owned).await
            })
        });
        updated.await
    }

    /// Notes how many partitions a queue was asked to have ([`Settings::partitions`]); the lanes that exist stay as they are
    /// ([`Queue::lanes`]). Whether there is such a queue.
    pub async fn queue_request_partitions(&self, name: &str, partitions: u32) -> Result<bool> {
        check_partitions(partitions)?;
        let params = [name.into(), Value::Int(partitions.into())];
        let act = self.db().write(move |conn| Box::pin(async move { conn.execute(QUEUE_REQUEST, &params).await }));
        Ok(act.await? > 0)
    }

    /// Stops handing out messages of a queue; everything else goes on. Pausing twice is the same as once.
    pub async fn queue_pause(&self, name: &str) -> Result<()> {
        self.set_paused(name, true).await
    }

    /// Hands out messages of a queue again.
    pub async fn queue_resume(&self, name: &str) -> Result<()> {
        self.set_paused(name, false).await?;
        self.shared().hub.wake_all();
        Ok(())
    }

    async fn set_paused(&self, name: &str, paused: bool) -> Result<()> {
        let params = [self.clock().value(), name.into(), Value::Bool(paused)];
        let found = self.db().transact(move |conn| {
            Box::pin(async move {
                let Some(row) = conn.query_opt(QUEUE_PAUSE, &params).await? else { return Ok(None) };
                let id = row.fields(QUEUE_PAUSE.name).int()?;
                conn.execute(LANE_CONFIGURE, &[Value::Int(id)]).await.map(Some)
            })
        });
        found.await?.map(drop).ok_or_else(|| missing(name))
    }

    /// A queue by its number.
    pub async fn queue_get_by_id(&self, id: i64) -> Result<Queue> {
        let found = self.db().read(move |conn| {
            Box::pin(async move {
                let Some(row) = conn.query_opt(QUEUE_NAME, &[Value::Int(id)]).await? else { return Ok(None) };
                get(conn, &row.fields(QUEUE_NAME.name).text()?).await
            })
        });
        found.await?.ok_or_else(|| Error::new(Kind::NotFound, format!("there is no queue with the number {id}")))
    }

    /// The queue that a lane belongs to; none when it has been deleted.
    pub async fn lane_queue(&self, lane: i64) -> Result<Option<i64>> {
        self.db()
            .read(move |conn| {
                Box::pin(async move {
                    let row = conn.query_opt(LANE_QUEUE, &[Value::Int(lane)]).await?;
                    row.map(|row| row.fields(LANE_QUEUE.name).int()).transpose()
                })
            })
            .await
    }

    /// Deletes a queue that nobody would miss: it must have no live message, and no worker that was heard of within
    /// `fresh`. Whether there was one.
    pub async fn queue_delete_unused(&self, name: &str, fresh: Duration) -> Result<bool> {
        let (owned, clock) = (name.to_owned(), self.clock().value());
        let act = self.db().transact(move |conn| {
            Box::pin(async move {
                let Some(queue) = get(conn, &owned).await? else { return Ok(None) };
                let params = [clock, Value::Int(queue.id), Value::Int(micros(fresh))];
                let rows = conn.query(QUEUE_BUSY, &params).await?;
                let mut row = rows[0].fields(QUEUE_BUSY.name);
                let (messages, workers) = (row.int()? + row.int()?, row.int()?);
                if messages > 0 || workers > 0 {
                    return Err(busy(&owned, messages, workers));
                }
                delete(conn, &queue).await?;
                Ok(Some(queue))
            })
        });
        let Some(queue) = act.await? else { return Ok(false) };
        self.delete_stragglers(queue).await;
        Ok(true)
    }

    /// Deletes a queue with its messages, its archive and everything that is known about it. Returns how many messages
    /// were lost with it.
    ///
    /// On PostgreSQL it waits up to 10 seconds for open transactions that may have stored messages in the queue; for one that
    /// is open longer, a task waits as long as this store is open, and later housekeeping removes its messages. A transaction
    /// above READ COMMITTED that has called `tenure.enqueue` keeps the deletion itself waiting, up to the time limit of statements.
    pub async fn queue_delete(&self, name: &str) -> Result<u64> {
        let owned = name.to_owned();
        let found = self.db().transact(move |conn| {
            Box::pin(async move {
                let Some(queue) = get(conn, &owned).await? else { return Ok(None) };
                let gone = delete(conn, &queue).await?;
                Ok(Some((queue, gone)))
            })
        });
        let (queue, gone) = found.await?.ok_or_else(|| missing(name))?;
        Ok(gone + self.delete_stragglers(queue).await)
    }

    /// An enqueue that saw the lanes before they were gone may commit after: its messages belong to no queue, and neither does
    /// what a late completion leaves in the archive. So the deletion ends when every transaction has ended that may have seen
    /// the lanes, and these rows are deleted too. It is a task, because the deletion has been committed whatever its caller
    /// does; the caller waits for it for [`PATIENCE`], and hears how many messages it has deleted.
    async fn delete_stragglers(&self, queue: Queue) -> u64 {
        let db = self.db().clone();
        let (reply, deleted) = oneshot::channel();
        self.spawn(async move {
            let gone = loop {
                match stragglers(&db, &queue).await {
                    Ok(gone) => break gone,
                    Err(error) if error.is_retryable() => tokio::time::sleep(RETRY).await,
                    Err(error) => {
                        tracing::error!(%error, "could not look for messages of a deleted queue; housekeeping removes them");
                        break 0;
                    }
                }
            };
            if reply.send(gone).is_err() {
                tracing::debug!(gone, "the deletion of a queue took longer than its caller waited");
            }
        });
        tokio::time::timeout(PATIENCE, deleted).await.ok().and_then(|deleted| deleted.ok()).unwrap_or(0)
    }
}

/// Deletes what late transactions have stored in the lanes of a deleted queue, when they have ended. What the others have
/// stored does not wait for one that stays open.
async fn stragglers(db: &Db, queue: &Queue) -> Result<u64> {
    let began = writers(db).await?;
    let early = match tokio::time::timeout(PATIENCE, end_of(db, &began)).await {
        Ok(ended) => ended.map(|()| 0)?,
        Err(_) => {
            let gone = delete_late(db, queue.clone()).await?;
            end_of(db, &began).await?;
            gone
        }
    };
    Ok(early + delete_late(db, queue.clone()).await?)
}

async fn delete_late(db: &Db, queue: Queue) -> Result<u64> {
    db.transact(move |conn| Box::pin(async move { delete_rest(conn, &queue).await })).await
}

/// The transactions that write messages now.
async fn writers(db: &Db) -> Result<HashSet<String>> {
    db.read(|conn| {
        Box::pin(async move {
            let rows = conn.query(LANE_WRITERS, &[]).await?;
            Ok(decode(LANE_WRITERS, &rows, |row| row.text())?.into_iter().collect())
        })
    })
    .await
}

/// Waits until no transaction that writes messages now runs any more, at most so long.
pub(crate) async fn end_of_writers(db: &Db, patience: Duration) -> Result<()> {
    let began = writers(db).await?;
    // A transaction of another program may stay open for hours.
    tokio::time::timeout(patience, end_of(db, &began)).await.unwrap_or(Ok(()))
}

/// Waits until none of these transactions runs any more.
async fn end_of(db: &Db, began: &HashSet<String>) -> Result<()> {
    let mut pause = Duration::from_millis(1);
    let mut running = began.clone();
    while !running.is_empty() {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
        running = writers(db).await?.intersection(&running).cloned().collect();
    }
    Ok(())
}

fn busy(name: &str, messages: i64, workers: i64) -> Error {
    let messages = match messages {
        1001.. => "more than 1000 messages".to_owned(),
        1 => "1 message".to_owned(),
        count => format!("{count} messages"),
    };
    let text = format!("queue '{name}' still has {messages} and {workers} live workers: purge it and stop them first");
    Error::new(Kind::InvalidState, text)
}

async fn delete(conn: &mut Conn<'_>, queue: &Queue) -> Result<u64> {
    let id = [Value::Int(queue.id)];
    conn.execute(QUEUE_ORPHAN, &id).await?;
    conn.execute(LANE_ORPHAN, &id).await?;
    conn.execute(QUEUE_DELETE, &id).await?;
    conn.execute(QUEUE_DELETE_LANES, &id).await?;
    delete_rest(conn, queue).await
}

/// Deletes what refers to a queue and its lanes.
async fn delete_rest(conn: &mut Conn<'_>, queue: &Queue) -> Result<u64> {
    let id = [Value::Int(queue.id)];
    conn.execute(QUEUE_DELETE_ARCHIVE, &id).await?;
    conn.execute(QUEUE_DELETE_DEDUPE, &id).await?;
    let mut gone = 0;
    for lane in &queue.lanes {
        let lane = [Value::Int(*lane)];
        gone += conn.execute(LANE_DELETE_MESSAGES, &lane).await?;
        gone += conn.execute(LANE_DELETE_SCHEDULED, &lane).await?;
        conn.execute(LANE_DELETE_KEYS, &lane).await?;
    }
    Ok(gone)
}

pub(crate) fn missing(name: &str) -> Error {
    Error::new(Kind::NotFound, format!("there is no queue named '{name}': create it first")).with_name(name)
}

pub(crate) async fn get(conn: &mut Conn<'_>, name: &str) -> Result<Option<Queue>> {
    let Some(row) = conn.query_opt(QUEUE_GET, &[name.into()]).await? else { return Ok(None) };
    let mut queue = queue(&mut row.fields(QUEUE_GET.name))?;
    queue.lanes = lanes(conn, queue.id).await?;
    Ok(Some(queue))
}

async fn lanes(conn: &mut Conn<'_>, queue: i64) -> Result<Vec<i64>> {
    let rows = conn.query(LANE_LIST, &[Value::Int(queue)]).await?;
    decode(LANE_LIST, &rows, |row| row.int())
}

fn queue(row: &mut Fields<'_>) -> Result<Queue> {
    let (id, name, namespace) = (row.int()?, row.text()?, row.text()?);
    let settings = Settings {
        namespace,
        partitions: u32::try_from(row.int()?).unwrap_or(u32::MAX),
        lease: duration(row.int()?),
        expire: row.int_or_null()?.map(duration),
        max_attempts: row.int_or_null()?.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX)),
        dead_queue: row.text_or_null()?,
        retain_completed: row.int_or_null()?.map(duration),
        retain_dead: row.int_or_null()?.map(duration),
        tail_on_expiry: row.bool()?,
        dedupe_window: duration(row.int()?),
        reference: row.text()?,
        placement: row.text()?,
    };
    let (paused_at, created_at, updated_at) = (row.int_or_null()?, row.int()?, row.int()?);
    Ok(Queue { id, name, settings, paused_at, created_at, updated_at, lanes: Vec::new() })
}

/// Microseconds of the database as a duration; never negative by construction.
pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// The settings that an update may change, in the order of the statements' parameters.
fn changeable(settings: &Settings) -> [Value; 9] {
    [
        Value::Int(micros(settings.lease)),
        settings.expire.map(micros).into(),
        settings.max_attempts.map(i64::from).into(),
        settings.dead_queue.as_deref().into(),
        settings.retain_completed.map(micros).into(),
        settings.retain_dead.map(micros).into(),
        Value::Bool(settings.tail_on_expiry),
        Value::Int(micros(settings.dedupe_window)),
        settings.reference.as_str().into(),
    ]
}

fn check(name: &str, settings: &Settings) -> Result<()> {
    check_text("the queue's name", name, 512)?;
    check_text("the namespace", &settings.namespace, 512)?;
    if !settings.reference.is_empty() {
        check_text("the queue's reference", &settings.reference, 65_536)?;
    }
    check_partitions(settings.partitions)?;
    check_duration("the lease", settings.lease)?;
    for (what, duration) in [
        ("the expiry", settings.expire),
        ("the retention of completed messages", settings.retain_completed),
        ("the retention of dead messages", settings.retain_dead),
        // With a window of zero a key is remembered for as long as its message lives.
        ("the dedupe window", Some(settings.dedupe_window).filter(|window| !window.is_zero())),
    ] {
        duration.map_or(Ok(()), |duration| check_duration(what, duration))?;
    }
    if settings.max_attempts == Some(0) {
        return Err(invalid("max_attempts is 0: leave it out for no limit, or give at least 1"));
    }
    if settings.dead_queue.as_deref() == Some(name) {
        return Err(invalid(format!("queue '{name}' cannot be its own dead queue: name another")));
    }
    Ok(())
}

/// A change of what is fixed at creation would be lost without a word.
fn check_fixed(name: &str, before: &Settings, after: &Settings) -> Result<()> {
    let shown = |settings: &Settings| {
        [settings.partitions.to_string(), format!("'{}'", settings.namespace), format!("'{}'", settings.placement)]
    };
    let whats = ["number of partitions", "namespace", "placement"];
    for ((what, before), after) in whats.into_iter().zip(shown(before)).zip(shown(after)) {
        if before != after {
            return Err(invalid(format!(
                "the {what} of queue '{name}' is fixed at creation and stays {before}, not {after}: create another queue with it, \
                 and delete '{name}' when it is empty"
            )));
        }
    }
    Ok(())
}

fn check_partitions(partitions: u32) -> Result<()> {
    if !(1..=MAX_PARTITIONS).contains(&partitions) {
        return Err(invalid(format!("partitions must be 1 to {MAX_PARTITIONS}, not {partitions}")));
    }
    Ok(())
}

/// Durations are 1 µs to 100 years: zero would be over before it began, and more overflows a database's arithmetic.
pub(crate) fn check_duration(what: &str, duration: Duration) -> Result<()> {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    if duration.as_micros() == 0 {
        return Err(invalid(format!("{what} must be longer than zero")));
    }
    if duration > CENTURY {
        return Err(invalid(format!("{what} must be at most 100 years")));
    }
    Ok(())
}

async fn find_dead_queue(conn: &mut Conn<'_>, name: &str, settings: &Settings) -> Result<()> {
    let Some(dead) = &settings.dead_queue else { return Ok(()) };
    match get(conn, dead).await? {
        None => Err(Error::new(
            Kind::NotFound,
            format!("the dead queue '{dead}' of '{name}' does not exist: create it first"),
        )
        .with_name(dead)),
        Some(queue) if queue.settings.dead_queue.is_some() => {
            Err(invalid(format!("'{dead}' has a dead queue of its own: dead letters would wander")))
        }
        Some(_) => Ok(()),
    }
}
