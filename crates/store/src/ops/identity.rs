//! Identities: namespaces, users and their keys, roles and their bindings.
//!
//! Invariants: every change first raises the one version, in its own transaction. The row of the version is thereby the
//! lock under which identities change one after the other, in whichever process: no key outlives its user, no binding
//! its user or its role, and no two checks pass each other by. Whoever keeps what was read here reads the version
//! before, and reads anew when it has risen. Whether a namespace exists is the caller's business, as it is for queues.

mod namespaces;
mod roles;
mod users;

use crate::db::{Act, Conn, decode};
use crate::error::{Error, Kind, Result};
use crate::ops::check_text;
use crate::sql::*;
use crate::store::Store;
use crate::value::{Fields, Value};

/// Ids and names stand in indexes, three of them in one; PostgreSQL refuses an entry of more than 2,704 bytes.
const MAX_NAME: usize = 512;
/// Everything else: more than a request may have.
const MAX_TEXT: usize = 1 << 20;

impl Store {
    /// A counter that every change of a namespace, user, key, role or binding raises; that a key was used does not. A
    /// call that finds nothing to change may raise it too. Zero: nothing was ever changed.
    pub async fn identity_version(&self) -> Result<i64> {
        let found = self.identity_rows(IDENTITY_VERSION, Vec::new(), |row| row.int()).await?;
        Ok(found.first().copied().unwrap_or(0))
    }

    /// Runs a change after all those that came before it.
    async fn identity_change<T: Send + 'static>(&self, act: impl Act<T>) -> Result<T> {
        self.db()
            .transact(move |conn| {
                Box::pin(async move {
                    conn.execute(IDENTITY_RAISE, &[]).await?;
                    act(conn).await
                })
            })
            .await
    }

    /// Runs a change of one statement. Whether it found its row.
    async fn identity_execute(&self, statement: Statement, params: Vec<Value>) -> Result<bool> {
        let act =
            self.identity_change(move |conn| Box::pin(async move { Ok(conn.execute(statement, &params).await? > 0) }));
        act.await
    }

    /// What a statement finds.
    async fn identity_rows<T: Send + 'static>(
        &self,
        statement: Statement,
        params: Vec<Value>,
        read: fn(&mut Fields<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.db()
            .read(move |conn| {
                Box::pin(async move {
                    let rows = conn.query(statement, &params).await?;
                    decode(statement, &rows, read)
                })
            })
            .await
    }
}

/// What a statement that answers with at most one row finds, in the middle of a change.
async fn find<T>(
    conn: &mut Conn<'_>,
    statement: Statement,
    params: &[Value],
    read: fn(&mut Fields<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let row = conn.query_opt(statement, params).await?;
    row.map(|row| read(&mut row.fields(statement.name))).transpose()
}

/// What stands in an index.
fn check_name(what: &str, text: &str) -> Result<()> {
    check_text(what, text, MAX_NAME)
}

/// What may be empty, or is only looked for.
fn check_loose(what: &str, text: &str) -> Result<()> {
    if text.is_empty() { Ok(()) } else { check_text(what, text, MAX_TEXT) }
}

fn count(limit: usize) -> Value {
    Value::Int(i64::try_from(limit).unwrap_or(i64::MAX))
}

/// Says what is taken, where the database only knows that something is.
fn taken(error: Error, message: String) -> Error {
    match error.kind() {
        Kind::AlreadyExists => Error::new(Kind::AlreadyExists, message).with_source(error),
        _ => error,
    }
}

fn no_user(id: &str) -> Error {
    Error::new(Kind::NotFound, format!("there is no user '{id}': create it first"))
}
