//! The acts: one Rust body each, over the waist. An act picks a statement, binds, decodes; nothing more.

pub(crate) mod archive;
pub(crate) mod claim;
#[cfg(feature = "sqlite")]
pub(crate) mod copy;
pub(crate) mod enqueue;
pub(crate) mod event;
pub(crate) mod extend;
pub(crate) mod finish;
pub(crate) mod history;
pub(crate) mod identity;
pub(crate) mod inspect;
pub(crate) mod instance;
pub(crate) mod key;
pub(crate) mod lifecycle;
pub(crate) mod maintain;
pub(crate) mod queue;
pub(crate) mod turn;
pub(crate) mod work;
pub(crate) mod worker;

use crate::db::Conn;
use crate::error::{Error, Kind, Result, invalid};
use crate::sql::{Dialect, MESSAGE_RESERVE};
use crate::value::{Column, Fields, Value};

use crate::types::Message;

/// Fresh ids for `count` messages: a column of nulls on PostgreSQL, where the statement draws them from the sequence.
pub(crate) async fn reserve(conn: &mut Conn<'_>, count: usize) -> Result<Column> {
    if conn.dialect() == Dialect::Postgres {
        return Ok(Column::Nulls(count));
    }
    let (first, _) = count_up(conn, Value::Null, count).await?;
    Ok((first..first + count as i64).collect())
}

/// One fresh id: null on PostgreSQL, where the statement draws it from the sequence.
pub(crate) async fn reserve_one(conn: &mut Conn<'_>) -> Result<Value> {
    match conn.dialect() {
        Dialect::Postgres => Ok(Value::Null),
        Dialect::Sqlite => count_up(conn, Value::Null, 1).await.map(|(id, _)| Value::Int(id)),
    }
}

/// A number of rows for a statement: more than a database can count means all.
pub(crate) fn rows(limit: usize) -> Value {
    Value::Int(i64::try_from(limit).unwrap_or(i64::MAX))
}

/// The error of an act in a lane that is not there.
pub(crate) fn no_lane(lane: i64) -> Error {
    Error::new(Kind::NotFound, format!("there is no lane {lane}: was its queue deleted?"))
}

/// Moves SQLite's counter of messages: the first of `count` new ids, and the time.
pub(crate) async fn count_up(conn: &mut Conn<'_>, clock: Value, count: usize) -> Result<(i64, i64)> {
    let rows = conn.query(MESSAGE_RESERVE, &[clock, Value::Int(count as i64)]).await?;
    let mut row = rows[0].fields(MESSAGE_RESERVE.name);
    Ok((row.int()? - count as i64 + 1, row.int()?))
}

/// The columns that every statement returning messages begins with.
pub(crate) fn message(fields: &mut Fields<'_>) -> Result<Message> {
    Ok(Message {
        id: fields.int()?,
        lane: fields.int()?,
        leased_until: fields.int()?,
        created_at: fields.int()?,
        expire_at: fields.int_or_null()?,
        origin_id: fields.int_or_null()?,
        attempts: fields.int()?,
        max_attempts: fields.int_or_null()?,
        buried_id: fields.int_or_null()?,
        buried_from: fields.text_or_null()?,
        reason: fields.text_or_null()?,
        source_id: fields.text_or_null()?,
        key: fields.text_or_null()?,
        kind: fields.text_or_null()?,
        encoding: fields.text_or_null()?,
        reference: fields.text_or_null()?,
        producer: fields.int_or_null()?,
        payload: fields.bytes()?,
        leased_at: fields.int_or_null()?,
        worker: None,
        due_at: None,
        keep: true,
        token: None,
        asked: None,
    })
}

/// The same with what only a look at a stored message shows.
pub(crate) fn stored(row: &mut Fields<'_>) -> Result<Message> {
    let mut message = message(row)?;
    message.worker = row.int_or_null()?;
    message.due_at = row.int_or_null()?;
    Ok(message)
}

/// Names and labels are text in every database: no NUL, which PostgreSQL cannot store, and a sane length.
pub(crate) fn check_text(what: &str, text: &str, max: usize) -> Result<()> {
    if text.is_empty() {
        return Err(invalid(format!("{what} is empty: give it at least one character")));
    }
    if text.len() > max {
        return Err(invalid(format!("{what} has {} bytes: at most {max} are allowed", text.len())));
    }
    if text.contains('\0') {
        return Err(invalid(format!("{what} contains a NUL character, which databases cannot store in text")));
    }
    Ok(())
}

/// Optional labels may be empty.
pub(crate) fn check_label(what: &str, text: Option<&str>) -> Result<()> {
    match text {
        None | Some("") => Ok(()),
        Some(text) => check_text(what, text, 65_536),
    }
}
