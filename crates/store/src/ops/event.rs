//! The event log: what happened in an execution of a stream, under numbers that the caller gives.

use crate::db::decode;
use crate::error::{Error, Kind, Result};
use crate::ops::{check_text, rows};
use crate::sql::{EVENT_APPEND, EVENT_LATEST, EVENT_READ};
use crate::store::Store;
use crate::types::Event;
use crate::value::{Column, Value};

impl Store {
    /// Appends events. A number that is already there is an error, and then nothing is appended.
    pub async fn event_append(&self, stream: &str, execution: i64, events: &[Event]) -> Result<()> {
        check_text("the stream's name", stream, 1024)?;
        let fixed = [self.clock().value(), stream.into(), Value::Int(execution)];
        let ids: Column = events.iter().map(|event| event.id).collect();
        let data: Column = events.iter().map(|event| event.data.clone()).collect();
        let act = self
            .db()
            .write(move |conn| Box::pin(async move { conn.each(EVENT_APPEND, &fixed, &[ids, data]).await.map(drop) }));
        act.await.map_err(|error| match error.kind() {
            Kind::AlreadyExists => {
                let message = format!("stream '{stream}', execution {execution} already has one of these events");
                Error::new(Kind::AlreadyExists, message).with_source(error)
            }
            _ => error,
        })
    }

    /// Events of one execution in order, from number `from` on.
    pub async fn event_read(&self, stream: &str, execution: i64, from: i64, limit: usize) -> Result<Vec<Event>> {
        let params = [stream.into(), Value::Int(execution), Value::Int(from), rows(limit)];
        self.db()
            .read(move |conn| {
                Box::pin(async move {
                    decode(EVENT_READ, &conn.query(EVENT_READ, &params).await?, |row| {
                        let (id, _created_at, data) = (row.int()?, row.int()?, row.bytes()?);
                        Ok(Event { id, data })
                    })
                })
            })
            .await
    }

    /// The highest execution of a stream; none when it has no events.
    pub async fn event_latest(&self, stream: &str) -> Result<Option<i64>> {
        let params = [stream.into()];
        self.db()
            .read(move |conn| {
                Box::pin(async move {
                    let rows = conn.query(EVENT_LATEST, &params).await?;
                    rows[0].fields(EVENT_LATEST.name).int_or_null()
                })
            })
            .await
    }
}
