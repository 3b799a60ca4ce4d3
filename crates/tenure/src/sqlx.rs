//! Enqueue and complete inside sqlx transactions on PostgreSQL, through the database's own functions.

use serde::Serialize;
use sqlx_core::query::query;
use sqlx_core::row::Row as _;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_postgres::PgConnection;
use tenure_store::Due;

use crate::consumer::Consumer;
use crate::error::{Error, Result};
use crate::producer::{EnqueueOptions, Producer};
use crate::types::QueueMessage;

impl Producer {
    /// Enqueues inside a transaction of the caller's on the same PostgreSQL database: pass `&mut *transaction`. Rollback
    /// leaves nothing; consumers hear of the messages when it commits. Their ids.
    ///
    /// # Errors
    /// As [`batch_enqueue`](Producer::batch_enqueue); `UnsupportedDsn` when this producer's store is not PostgreSQL.
    pub async fn enqueue_in_sqlx<T: Serialize>(
        &self,
        connection: &mut PgConnection,
        payloads: &[T],
        options: &EnqueueOptions,
    ) -> Result<Vec<i64>> {
        let text = format!(
            "select {}($1, $2, $3, make_interval(secs => $4), to_timestamp($5), $6, $7, make_interval(secs => $8), $9, null, $10)",
            self.store().kernel.postgres_function("enqueue")?
        );
        let mut ids = Vec::with_capacity(payloads.len());
        for message in self.batch(payloads, options)? {
            let (delay, at) = match message.due {
                Some(Due::In(delay)) => (Some(delay.as_secs_f64()), None),
                Some(Due::At(at)) => (None, Some(at as f64 / 1e6)),
                None => (None, None),
            };
            let call = query(AssertSqlSafe(text.clone()))
                .bind(self.queue_name())
                .bind(message.payload.to_vec())
                .bind(message.key)
                .bind(delay)
                .bind(at)
                .bind(message.dedupe)
                .bind(message.max_attempts.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX)))
                .bind(message.expire.map(|expire| expire.as_secs_f64()))
                .bind(message.kind)
                .bind(message.reference);
            let row = call.fetch_one(&mut *connection).await.map_err(refused)?;
            ids.push(row.try_get(0).map_err(refused)?);
        }
        Ok(ids)
    }
}

impl Consumer {
    /// Completes a message inside a transaction of the caller's on the same PostgreSQL database: pass
    /// `&mut *transaction`.
    ///
    /// # Errors
    /// `LeaseLost` when somebody else may be working on it: roll back. `UnsupportedDsn` when the store is not PostgreSQL.
    pub async fn complete_in_sqlx(&self, connection: &mut PgConnection, message: &QueueMessage) -> Result<()> {
        let Some(fence) = message.fence else { return Err(Error::LeaseLost { id: message.id }) };
        let text = format!("select {}($1, $2)", self.store.kernel.postgres_function("complete")?);
        let call = query(AssertSqlSafe(text)).bind(fence.id).bind(message.read_ct);
        let row = call.fetch_one(&mut *connection).await.map_err(refused)?;
        match row.try_get(0).map_err(refused)? {
            true => {
                message.in_transaction.completes();
                Ok(())
            }
            false => Err(Error::LeaseLost { id: message.id }),
        }
    }
}

fn refused(error: sqlx_core::Error) -> Error {
    let message = format!("the transaction refused: {error}");
    Error::Store(tenure_store::Error::new(tenure_store::Kind::Database, message).with_source(error))
}
