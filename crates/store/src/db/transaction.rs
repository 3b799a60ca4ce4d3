//! Acts inside a transaction of the caller's own: nothing is there until it commits, and nothing is left if it does not.
//!
//! The caller commits, so this process cannot know when to wake its consumers. On PostgreSQL a NOTIFY goes into the same
//! transaction, which the server delivers at the commit; a SQLite file is watched for commits anyway.
//!
//! A queue that was deleted and created anew is looked up after the first refusal, outside of the transaction that was
//! refused: what the caller does next goes into the new one.

use std::collections::BTreeSet;

use super::postgres::Postgres;
#[cfg(feature = "sqlite")]
use super::sqlite::Sqlite;
use super::{Conn, Db};
#[cfg(any(feature = "sqlite", feature = "turso"))]
use crate::error::Error;
use crate::error::{Kind, Result};
use crate::ops::enqueue::{Entry, enqueue};
use crate::ops::finish::{Finish, Verb, finish};
#[cfg(feature = "sqlite")]
use crate::ops::queue::get;
use crate::sql::LANE_LOCK;
use crate::store::Store;
use crate::types::{Answer, Enqueued, Fence, NewMessage, Queue};
use crate::value::Value;
use crate::wait::news::{News, Outbox, Topic};

impl Store {
    /// Enqueues messages in a transaction of the caller's on the same database.
    ///
    /// # Errors
    /// `NotFound` when the queue was deleted. If it has been created anew, the next transaction enqueues into the new one.
    /// `Contended`, a serialization failure, when the transaction is above READ COMMITTED and its snapshot is older than the deletion.
    /// `Unsupported` when this store is not a PostgreSQL database.
    pub async fn enqueue_in_postgres(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        queue: &Queue,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Enqueued>> {
        let db = self.postgres()?;
        let known = self.successor(queue);
        let queue = known.as_ref().unwrap_or(queue);
        let entries = self.entries(queue, None, messages)?;
        let mut conn = Conn::Postgres(db.borrowed(transaction.client()));
        let answers = match enqueue(&mut conn, self.clock(), &entries).await {
            Err(error) if error.kind() == Kind::NotFound => {
                if let Err(error) = self.recreated(queue).await {
                    tracing::debug!(%error, "could not look whether the queue was created anew; the next call looks again");
                }
                return Err(error);
            }
            answers => answers?,
        };
        if db.notify_in(transaction.client(), &ready(&entries, &answers)).await? {
            // The snapshot may be older than the deletion of the queue, and still have its lanes.
            let lanes: BTreeSet<i64> = entries.iter().map(|entry| entry.lane).collect();
            conn.query(LANE_LOCK, &[Value::Ints(lanes.into_iter().collect())]).await?;
        }
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
    /// `NotFound` when the queue was deleted. If it has been created anew, the next call enqueues into the new one.
    /// `Unsupported` when this store is not a SQLite file.
    #[cfg(feature = "sqlite")]
    pub fn enqueue_in_sqlite(
        &self,
        transaction: &rusqlite::Transaction<'_>,
        queue: &Queue,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Enqueued>> {
        let db = self.sqlite_file()?;
        let known = self.successor(queue);
        let queue = known.as_ref().unwrap_or(queue);
        let (entries, clock) = (self.entries(queue, None, messages)?, self.clock().clone());
        let answers =
            db.run_on(transaction, move |conn| Box::pin(async move { enqueue(conn, &clock, &entries).await }));
        if answers.as_ref().is_err_and(|error| error.kind() == Kind::NotFound) {
            let name = queue.name.clone();
            // On the caller's connection, because this call does not wait: only committed queues are there.
            match db.run_on(transaction, move |conn| Box::pin(async move { get(conn, &name).await })) {
                Ok(Some(found)) if found.id != queue.id => self.remember_successor(queue, &found),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "could not look whether the queue was created anew"),
            }
        }
        answers
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

    /// The PostgreSQL database, if this program may still use it.
    fn postgres(&self) -> Result<&Postgres> {
        self.db().admit_at_once()?;
        match self.db() {
            Db::Postgres(db) => Ok(db),
            #[cfg(any(feature = "sqlite", feature = "turso"))]
            _ => Err(elsewhere(self, "PostgreSQL")),
        }
    }

    #[cfg(feature = "sqlite")]
    fn sqlite_file(&self) -> Result<&Sqlite> {
        self.db().admit_at_once()?;
        match self.db() {
            Db::Sqlite(db) if db.is_file() => Ok(db),
            _ => Err(elsewhere(self, "a SQLite file")),
        }
    }
}

fn completions(fences: &[Fence]) -> Vec<Finish> {
    fences.iter().map(|fence| Finish::new(*fence, Verb::Complete)).collect()
}

/// What the lanes of these messages have to be told when the transaction commits.
fn ready(entries: &[Entry], answers: &[Enqueued]) -> Outbox {
    let mut ready = Outbox::default();
    for (entry, answer) in entries.iter().zip(answers).filter(|(_, answer)| !answer.duplicate) {
        let news = if answer.due_at.is_some() { News::anywhere() } else { News::ready_at(answer.id) };
        ready.add(Topic::Lane(entry.lane), news);
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
