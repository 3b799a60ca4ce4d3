//! Looking at messages, and an operator's hand on them: list, get, count, delete, import, clear.

use std::time::Duration;

use crate::clock::micros;
use crate::db::{Conn, decode};
use crate::error::{Result, invalid};
use crate::ops::queue::duration;
use crate::ops::{check_label, check_text, no_lane, reserve, rows, stored};
use crate::sql::*;
use crate::store::Store;
use crate::types::{Census, Clear, Import, LaneStats, Message, Micros, State};
use crate::value::{Column, Value};

impl Store {
    /// The time of the database's clock, which alone decides what is due or expired.
    pub async fn now(&self) -> Result<Micros> {
        let clock = self.clock().value();
        let act = self.db().read(move |conn| {
            Box::pin(async move { conn.query(CLOCK_NOW, &[clock]).await?[0].fields(CLOCK_NOW.name).int() })
        });
        act.await
    }

    /// Messages of a lane in one state, by position, from the first one at or after `pivot`.
    pub async fn message_list(&self, lane: i64, state: State, pivot: i64, limit: usize) -> Result<Vec<Message>> {
        let (lane, pivot, limit) = (Value::Int(lane), Value::Int(pivot), rows(limit));
        let (statement, params) = match state {
            State::Scheduled => (SCHEDULED_LIST, vec![lane, pivot, limit]),
            _ => {
                let ready = Value::Bool(state != State::Leased);
                let leased = Value::Bool(state != State::Ready);
                (MESSAGE_LIST, vec![self.clock().value(), lane, pivot, ready, leased, limit])
            }
        };
        self.db()
            .read(move |conn| {
                Box::pin(async move { decode(statement, &conn.query(statement, &params).await?, stored) })
            })
            .await
    }

    /// The live message with this identity, wherever it has moved since.
    pub async fn message_get(&self, identity: i64) -> Result<Option<Message>> {
        let params = [Value::Int(identity)];
        self.db()
            .read(move |conn| {
                Box::pin(async move {
                    for statement in [MESSAGE_GET, SCHEDULED_GET] {
                        if let Some(row) = conn.query_opt(statement, &params).await? {
                            return stored(&mut row.fields(statement.name)).map(Some);
                        }
                    }
                    Ok(None)
                })
            })
            .await
    }

    /// Where messages are now, by their identities: ready or leased, none for one that is neither.
    pub async fn message_positions(&self, identities: &[i64]) -> Result<Vec<Option<i64>>> {
        let mut positions = vec![None; identities.len()];
        let column: Column = identities.iter().copied().collect();
        let act = self.db().read(move |conn| {
            Box::pin(async move {
                let rows = conn.each(MESSAGE_POSITION, &[], &[column]).await?;
                decode(MESSAGE_POSITION, &rows, |row| Ok((row.int()?, row.int()?)))
            })
        });
        for (n, id) in act.await? {
            positions[n as usize] = Some(id);
        }
        Ok(positions)
    }

    /// Deletes messages by position, whatever their state, of one lane or of any. One answer each: whether there was one.
    pub async fn message_delete(&self, lane: Option<i64>, ids: &[i64]) -> Result<Vec<bool>> {
        let mut gone = vec![false; ids.len()];
        let column: Column = ids.iter().copied().collect();
        let act = self.db().write(move |conn| {
            Box::pin(async move {
                let rows = conn.each(MESSAGE_DELETE, &[lane.into()], &[column]).await?;
                decode(MESSAGE_DELETE, &rows, |row| row.int())
            })
        });
        for n in act.await? {
            gone[n as usize] = true;
        }
        Ok(gone)
    }

    /// Stores messages as they are, under new ids. None for one whose source id is already in the lane.
    ///
    /// # Errors
    /// `InvalidInput` for a message with a key that is leased: such a message is leased with its key.
    pub async fn message_import(&self, lane: i64, items: Vec<Import>) -> Result<Vec<Option<i64>>> {
        for item in &items {
            item.source_id.as_deref().map_or(Ok(()), |text| check_text("the source id", text, 1024))?;
            item.key.as_deref().map_or(Ok(()), |text| check_text("the key", text, 1024))?;
            if let Some(key) = &item.key
                && item.leased_until != 0
            {
                let message = "is leased with its key, which cannot be imported: import it with leased_until 0";
                return Err(invalid(format!("a message with the key {key:?} {message}")));
            }
            check_label("the kind", item.kind.as_deref())?;
            check_label("the encoding", item.encoding.as_deref())?;
            check_label("the reference", item.reference.as_deref())?;
        }
        let clock = self.clock().value();
        let act = self.db().transact(move |conn| Box::pin(async move { import(conn, clock, lane, &items).await }));
        let ids = act.await?;
        self.ready_somewhere(lane);
        Ok(ids)
    }

    /// Deletes messages of a lane by state. Returns how many.
    pub async fn lane_clear(&self, lane: i64, which: Clear) -> Result<u64> {
        let clock = self.clock().value();
        self.db()
            .transact(move |conn| {
                Box::pin(async move {
                    let mut gone = 0;
                    if which.ready || which.leased {
                        let params = [clock, Value::Int(lane), Value::Bool(which.ready), Value::Bool(which.leased)];
                        gone += conn.execute(MESSAGE_CLEAR, &params).await?;
                    }
                    if which.scheduled {
                        gone += conn.execute(SCHEDULED_CLEAR, &[Value::Int(lane)]).await?;
                    }
                    Ok(gone)
                })
            })
            .await
    }

    /// What the whole database holds, without walking any queue. A worker counts as active when it was heard of within
    /// `fresh`.
    pub async fn census(&self, fresh: Duration) -> Result<Census> {
        let params = [self.clock().value(), Value::Int(micros(fresh))];
        self.db()
            .read(move |conn| {
                Box::pin(async move {
                    let rows = conn.query(QUEUE_CENSUS, &params).await?;
                    let mut row = rows[0].fields(QUEUE_CENSUS.name);
                    let mut count = || row.int().map(|count| u64::try_from(count).unwrap_or(0));
                    let (queues, workers, active_workers) = (count()?, count()?, count()?);
                    let (archived, dead) = (count()?, count()?);
                    Ok(Census { queues, workers, active_workers, archived, dead, schema_version: row.int()? })
                })
            })
            .await
    }

    /// How many messages of a lane can be leased now, counted up to `most`.
    pub async fn lane_ready(&self, lane: i64, most: usize) -> Result<usize> {
        let params = [self.clock().value(), Value::Int(lane), rows(most)];
        self.db()
            .read(move |conn| {
                Box::pin(async move {
                    let rows = conn.query(LANE_READY, &params).await?;
                    Ok(usize::try_from(rows[0].fields(LANE_READY.name).int()?).unwrap_or(0))
                })
            })
            .await
    }

    /// Exact counts and ages of one lane.
    pub async fn lane_stats(&self, lane: i64) -> Result<LaneStats> {
        let params = [self.clock().value(), Value::Int(lane)];
        self.db()
            .read(move |conn| {
                Box::pin(async move {
                    let rows = conn.query(LANE_STATS, &params).await?;
                    let mut row = rows[0].fields(LANE_STATS.name);
                    let mut count = || row.int().map(|count| u64::try_from(count).unwrap_or(0));
                    let (ready, leased, scheduled) = (count()?, count()?, count()?);
                    let (oldest, age, left) = (row.int_or_null()?, row.int_or_null()?, row.int_or_null()?);
                    let (newest, now) = (row.int_or_null()?, row.int()?);
                    Ok(LaneStats {
                        lane,
                        ready,
                        leased,
                        scheduled,
                        oldest_ready: oldest.map(|oldest| duration(now - oldest)),
                        oldest_ready_at: oldest,
                        newest_at: newest,
                        average_age: age.map(duration),
                        average_lease_left: left.map(duration),
                    })
                })
            })
            .await
    }
}

async fn import(conn: &mut Conn<'_>, clock: Value, lane: i64, items: &[Import]) -> Result<Vec<Option<i64>>> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let columns = [
        reserve(conn, items.len()).await?,
        items.iter().map(|_| lane).collect(),
        items.iter().map(|item| item.leased_until).collect(),
        items.iter().map(|item| item.expire_at).collect(),
        items.iter().map(|item| item.attempts).collect(),
        items.iter().map(|item| item.max_attempts).collect(),
        items.iter().map(|item| item.source_id.clone()).collect(),
        items.iter().map(|item| item.key.clone()).collect(),
        items.iter().map(|item| item.kind.clone()).collect(),
        items.iter().map(|item| item.encoding.clone()).collect(),
        items.iter().map(|item| item.reference.clone()).collect(),
        items.iter().map(|item| item.payload.clone()).collect(),
    ];
    let rows = conn.each(MESSAGE_IMPORT, &[clock], &columns).await?;
    let stored = decode(MESSAGE_IMPORT, &rows, |row| {
        let (id, _created_at, source_id) = (row.int()?, row.int()?, row.text_or_null()?);
        Ok((id, source_id))
    })?;
    // Rows come back in the order of the items, without those that were passed over.
    let mut stored = stored.into_iter().peekable();
    let ids: Vec<_> =
        items.iter().map(|item| stored.next_if(|(_, source)| *source == item.source_id).map(|(id, _)| id)).collect();
    match stored.next() {
        None if ids.iter().any(Option::is_some) || items.iter().all(|item| item.source_id.is_some()) => Ok(ids),
        _ => Err(no_lane(lane)),
    }
}
