//! Acts inside a transaction of the caller's own: nothing is there until it commits, and nothing is left if it does not.
//!
//! The caller commits, so this process cannot know when to wake its consumers. On PostgreSQL a NOTIFY goes into the same
//! transaction, which the server delivers at the commit; a SQLite file is watched for commits anyway.

use std::collections::HashMap;

use super::postgres::Postgres;
#[cfg(feature = "sqlite")]
use super::sqlite::Sqlite;
use super::{Conn, Db};
use crate::error::Result;
#[cfg(any(feature = "sqlite", feature = "turso"))]
use crate::error::{Error, Kind};
use crate::ops::enqueue::{Entry, enqueue};
use crate::ops::finish::{Finish, Verb, finish};
use crate::store::Store;
use crate::types::{Answer, Enqueued, Fence, NewMessage, Queue};

impl Store {
    /// Enqueues messages in a transaction of the caller's on the same database.
    ///
    /// # Errors
    /// `Unsupported` when this store is not a PostgreSQL database.
    pub async fn enqueue_in_postgres(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        queue: &Queue,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Enqueued>> {
        let db = self.postgres()?;
        let entries = self.entries(queue, None, messages)?;
        let mut conn = Conn::Postgres(db.borrowed(transaction.client()));
        let answers = enqueue(&mut conn, self.clock(), &entries).await?;
        db.notify_in(transaction.client(), &ready(&entries, &answers)).await?;
        Ok(answers)
    }

    /// The full name of one of the database's own functions, `enqueue` or `complete`, for drivers that this crate does
    /// not know.
    ///
    /// # Errors
    /// `Unsupported` when this store is not a PostgreSQL database.
    pub fn postgres_function(&self, name: &str) -> Result<String> {
        let db = self.postgres()?;
        Ok(format!("{}.{}", crate::sql::quoted(&db.schema), crate::sql::quoted(name)))
    }

    /// Completes messages in a transaction of the caller's on the same database. One answer each; whoever finds one that
    /// is not `Done` should roll back, because somebody else may be working on that message.
    ///
    /// # Errors
    /// `Unsupported` when this store is not a PostgreSQL database.
    pub async fn complete_in_postgres(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        fences: &[Fence],
    ) -> Result<Vec<Answer>> {
        let db = self.postgres()?;
        let mut conn = Conn::Postgres(db.borrowed(transaction.client()));
        let finished = finish(&mut conn, self.clock(), &completions(fences)).await?;
        Ok(finished.into_iter().map(|finished| finished.answer).collect())
    }

    /// Enqueues messages in a transaction of the caller's on the same file.
    ///
    /// # Errors
    /// `Unsupported` when this store is not a SQLite file.
    #[cfg(feature = "sqlite")]
    pub fn enqueue_in_sqlite(
        &self,
        transaction: &rusqlite::Transaction<'_>,
        queue: &Queue,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Enqueued>> {
        let db = self.sqlite_file()?;
        let (entries, clock) = (self.entries(queue, None, messages)?, self.clock().clone());
        db.run_on(transaction, move |conn| Box::pin(async move { enqueue(conn, &clock, &entries).await }))
    }

    /// Completes messages in a transaction of the caller's on the same file. One answer each.
    ///
    /// # Errors
    /// `Unsupported` when this store is not a SQLite file.
    #[cfg(feature = "sqlite")]
    pub fn complete_in_sqlite(&self, transaction: &rusqlite::Transaction<'_>, fences: &[Fence]) -> Result<Vec<Answer>> {
        let db = self.sqlite_file()?;
        let (items, clock) = (completions(fences), self.clock().clone());
        let finished =
            db.run_on(transaction, move |conn| Box::pin(async move { finish(conn, &clock, &items).await }))?;
        Ok(finished.into_iter().map(|finished| finished.answer).collect())
    }

    fn postgres(&self) -> Result<&Postgres> {
        match self.db() {
            Db::Postgres(db) => Ok(db),
            #[cfg(any(feature = "sqlite", feature = "turso"))]
            _ => Err(elsewhere(self, "PostgreSQL")),
        }
    }

    #[cfg(feature = "sqlite")]
    fn sqlite_file(&self) -> Result<&Sqlite> {
        match self.db() {
            Db::Sqlite(db) if db.is_file() => Ok(db),
            _ => Err(elsewhere(self, "a SQLite file")),
        }
    }
}

fn completions(fences: &[Fence]) -> Vec<Finish> {
    fences.iter().map(|fence| Finish::new(*fence, Verb::Complete)).collect()
}

/// The least position that becomes ready in each lane; the greatest there is stands for "look everywhere".
fn ready(entries: &[Entry], answers: &[Enqueued]) -> HashMap<i64, i64> {
    let mut ready = HashMap::new();
    for (entry, answer) in entries.iter().zip(answers).filter(|(_, answer)| !answer.duplicate) {
        let position = if answer.due_at.is_some() { i64::MAX } else { answer.id };
        ready.entry(entry.lane).and_modify(|least: &mut i64| *least = position.min(*least)).or_insert(position);
    }
    ready
}

#[cfg(any(feature = "sqlite", feature = "turso"))]
fn elsewhere(store: &Store, wanted: &str) -> Error {
    let message = format!(
        "this store is {}, and the transaction is of {wanted}: enqueue through a store on the same database",
        store.backend().name()
    );
    Error::new(Kind::Unsupported, message)
}
