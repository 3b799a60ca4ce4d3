//! Enqueue and complete inside sqlx transactions on PostgreSQL, through the database's own functions.

use serde::Serialize;
use sqlx_core::connection::Connection as _;
use sqlx_core::query::query;
use sqlx_core::row::Row as _;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_postgres::{PgConnection, PgRow};
use tenure_store::{Due, Enqueued, Kind, NewMessage};

use crate::consumer::Consumer;
use crate::error::{Error, Result};
use crate::payload::Payload;
use crate::producer::{EnqueueOptions, Producer};
use crate::types::{QueueMessage, time};

impl Producer {
    /// Enqueues inside a transaction of the caller's on the same PostgreSQL database: pass `&mut *transaction`. Rollback
    /// leaves nothing; consumers hear of the messages when it commits. One round trip, however many they are.
    ///
    /// # Errors
    /// As [`batch_enqueue`](Producer::batch_enqueue); `UnsupportedDsn` when this producer's store is not PostgreSQL. Above READ
    /// COMMITTED also `Store` with a serialization failure when the queue was deleted after the transaction's snapshot was taken:
    /// such errors, deadlocks and lost connections are [retryable](Error::is_retryable), with the whole transaction.
    pub async fn enqueue_in_sqlx<T: Serialize>(
        &self,
        connection: &mut PgConnection,
        payloads: &[T],
        options: &EnqueueOptions,
    ) -> Result<Vec<QueueMessage>> {
        self.put_in_sqlx(connection, self.batch(payloads, options)?).await
    }

    /// The same with options of its own for each payload: see [`batch_enqueue_each`](Producer::batch_enqueue_each).
    ///
    /// # Errors
    /// As [`batch_enqueue_each`](Producer::batch_enqueue_each); `UnsupportedDsn` when this producer's store is not PostgreSQL.
    pub async fn enqueue_each_in_sqlx<T: Serialize>(
        &self,
        connection: &mut PgConnection,
        messages: &[(T, EnqueueOptions)],
    ) -> Result<Vec<QueueMessage>> {
        self.put_in_sqlx(connection, self.each(messages)?).await
    }

    async fn put_in_sqlx(&self, connection: &mut PgConnection, messages: Vec<NewMessage>) -> Result<Vec<QueueMessage>> {
        let function = self.store().kernel.postgres_function("enqueue_batch")?;
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        // The function leaves the checks of arguments to its caller.
        messages.iter().try_for_each(NewMessage::check)?;
        let text = format!("select * from {function}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)");
        let of = || messages.iter();
        let delay = |message: &NewMessage| match message.due {
            Some(Due::In(delay)) => Some(micros(delay)),
            _ => None,
        };
        let at = |message: &NewMessage| match message.due {
            Some(Due::At(at)) => Some(at),
            _ => None,
        };
        let call = query(AssertSqlSafe(text))
            .bind(self.queue_name())
            .bind(of().map(|message| message.payload.to_vec()).collect::<Vec<_>>())
            .bind(column(of().map(|message| message.key.clone())))
            .bind(column(of().map(delay)))
            .bind(column(of().map(at)))
            .bind(column(of().map(|message| message.dedupe.clone())))
            .bind(column(of().map(|message| message.max_attempts.map(i64::from))))
            .bind(column(of().map(|message| message.expire.map(micros))))
            .bind(column(of().map(|message| message.kind.clone())))
            .bind(column(of().map(|message| message.encoding.clone())))
            .bind(column(of().map(|message| message.reference.clone())))
            .bind(self.worker_id());
        let alone = !connection.is_in_transaction();
        let act = async { call.fetch_all(&mut *connection).await.map_err(|error| self.refusal(error, alone)) };
        let rows = self.observer().watch("enqueue_in_transaction", act).await?;
        let answer =
            |(message, row): (NewMessage, &PgRow)| answer(message, row).map_err(|error| refused(error, alone).into());
        messages.into_iter().zip(&rows).map(answer).collect()
    }

    fn refusal(&self, error: sqlx_core::Error, alone: bool) -> Error {
        // The function's own error for a queue that is not there.
        let code = error.as_database_error().and_then(|error| error.code());
        match code.as_deref() {
            Some("P0002") => Error::QueueNotFound { name: self.queue_name().to_owned() },
            _ => Error::of_queue(self.queue_name(), refused(error, alone)),
        }
    }
}

fn micros(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// An array for a column of the function, null when no message has a value there.
fn column<T>(values: impl Iterator<Item = Option<T>>) -> Option<Vec<Option<T>>> {
    let values: Vec<Option<T>> = values.collect();
    values.iter().any(Option::is_some).then_some(values)
}

/// One row of `enqueue_batch`.
fn answer(message: NewMessage, row: &PgRow) -> sqlx_core::Result<QueueMessage> {
    let enqueued = Enqueued {
        id: row.try_get("id")?,
        created_at: row.try_get("created_at")?,
        due_at: row.try_get("due_at")?,
        expire_at: row.try_get("expire_at")?,
        duplicate: row.try_get("duplicate")?,
        stored: None,
    };
    let (created_at, due_at) = (enqueued.created_at, enqueued.due_at);
    let known = QueueMessage::enqueued(row.try_get("queue_id")?, message, enqueued);
    if !row.try_get("found")? {
        return Ok(known);
    }
    let leased_until: i64 = row.try_get("leased_until")?;
    Ok(QueueMessage {
        payload: Payload::bytes(row.try_get::<Vec<u8>, _>("payload")?),
        vt: time(due_at.unwrap_or(leased_until.max(created_at))),
        read_ct: row.try_get("attempts")?,
        dequeued_at: row.try_get::<Option<i64>, _>("leased_at")?.map(time),
        producer_worker_id: row.try_get("own_producer")?,
        consumer_worker_id: row.try_get("worker")?,
        max_read_ct: row.try_get::<Option<i32>, _>("own_max_attempts")?.map(i64::from),
        key: row.try_get("key")?,
        kind: row.try_get("kind")?,
        encoding: row.try_get("encoding")?,
        reference: row.try_get("reference")?,
        ..known
    })
}

impl Consumer {
    /// Completes a message inside a transaction of the caller's on the same PostgreSQL database: pass
    /// `&mut *transaction`. The lease must be this consumer's, and for a message with a key, the key's too.
    ///
    /// # Errors
    /// `LeaseLost` when another consumer may be working on it: roll back. `UnsupportedDsn` when the store is not PostgreSQL.
    pub async fn complete_in_sqlx(&self, connection: &mut PgConnection, message: &QueueMessage) -> Result<()> {
        let text = format!("select {}($1, $2, $3, $4)", self.store.kernel.postgres_function("complete")?);
        let Some(fence) = message.fence else { return Err(Error::LeaseLost { id: message.id }) };
        let call = query(AssertSqlSafe(text))
            .bind(fence.id)
            .bind(i64::from(message.read_ct))
            .bind(self.worker.id)
            .bind(fence.token());
        let alone = !connection.is_in_transaction();
        let act = async { call.fetch_one(&mut *connection).await.map_err(|error| refused(error, alone).into()) };
        let row = self.observer.watch("complete_in_transaction", act).await?;
        match row.try_get(0).map_err(|error| refused(error, alone))? {
            true => {
                self.completes_in_transaction(message);
                Ok(())
            }
            false => Err(Error::LeaseLost { id: message.id }),
        }
    }
}

/// The kernel's error for one of sqlx. A statement that is `alone`, a transaction of its own, may have been carried out when the
/// connection was lost before its answer came.
fn refused(error: sqlx_core::Error, alone: bool) -> tenure_store::Error {
    use sqlx_core::Error::{Database, Io, PoolClosed, PoolTimedOut, Tls, WorkerCrashed};
    let refused = match &error {
        Database(said) => tenure_store::Error::of_postgres(&said.code().unwrap_or_default(), said.message()),
        Io(_) | Tls(_) | PoolTimedOut | PoolClosed | WorkerCrashed => {
            let lost = tenure_store::Error::new(Kind::Unavailable, "the connection to PostgreSQL was lost");
            if alone { lost.ambiguous() } else { lost }
        }
        _ => tenure_store::Error::new(Kind::Database, format!("PostgreSQL: {error}")),
    };
    refused.with_source(error)
}
