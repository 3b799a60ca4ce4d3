//! The waist: what an act may ask of a database. Everything above is written once; everything below is an adapter.
//!
//! An act is an async function over a [`Conn`]. Its owner decides the transaction: [`Db::read`] and [`Db::write`] run
//! it on one connection, [`Db::transact`] inside one transaction. On SQLite the whole act is shipped to a thread that
//! owns the connection and runs there to its end without ever waiting, so it costs one hop however many statements it
//! has, and a write is always one transaction.

#[cfg(any(feature = "sqlite", feature = "turso"))]
mod files;
#[cfg(feature = "sqlite")]
pub(crate) mod foreign;
mod guard;
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
mod transaction;
#[cfg(feature = "turso")]
pub(crate) mod turso;

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::error::Result;
use crate::sql::{Dialect, Statement};
use crate::value::{Column, Fields, Row, Value};

/// A connection, for the length of one act.
pub(crate) enum Conn<'a> {
    Postgres(postgres::PgConn<'a>),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlite::SqliteConn<'a>),
    #[cfg(feature = "turso")]
    Turso(turso::TursoConn<'a>),
}

macro_rules! dispatch {
    ($self:expr, $conn:ident => $postgres:expr, $embedded:expr) => {
        match $self {
            Conn::Postgres($conn) => $postgres,
            #[cfg(feature = "sqlite")]
            Conn::Sqlite($conn) => $embedded,
            #[cfg(feature = "turso")]
            Conn::Turso($conn) => $embedded.await,
        }
    };
}

impl Conn<'_> {
    pub(crate) fn dialect(&self) -> Dialect {
        match self {
            Conn::Postgres(_) => Dialect::Postgres,
            #[cfg(any(feature = "sqlite", feature = "turso"))]
            _ => Dialect::Sqlite,
        }
    }

    /// Runs a statement and returns its rows.
    pub(crate) async fn query(&mut self, statement: Statement, params: &[Value]) -> Result<Vec<Row>> {
        dispatch!(self, conn => conn.query(statement, params).await, conn.query(statement, params))
    }

    /// Runs a statement that answers with at most one row.
    pub(crate) async fn query_opt(&mut self, statement: Statement, params: &[Value]) -> Result<Option<Row>> {
        Ok(self.query(statement, params).await?.into_iter().next())
    }

    /// Runs a statement and returns how many rows it changed.
    pub(crate) async fn execute(&mut self, statement: Statement, params: &[Value]) -> Result<u64> {
        dispatch!(self, conn => conn.execute(statement, params).await, conn.execute(statement, params))
    }

    /// Applies a statement to many rows: `fixed` parameters first, then `columns`, then the row's ordinal.
    ///
    /// PostgreSQL binds the columns as arrays to one statement; SQLite runs the prepared statement once per row. The
    /// text never grows with the batch and no limit on bind variables is ever met.
    pub(crate) async fn each(&mut self, statement: Statement, fixed: &[Value], columns: &[Column]) -> Result<Vec<Row>> {
        let len = columns.first().map_or(0, Column::len);
        debug_assert!(columns.iter().all(|column| column.len() == len), "columns of one batch have one length");
        if len == 0 {
            return Ok(Vec::new());
        }
        dispatch!(self, conn => conn.each(statement, fixed, columns, len).await, conn.each(statement, fixed, columns, len))
    }
}

/// Rows of parameters for one part of an act: columns of one length.
pub(crate) type List = Vec<Column>;

impl Conn<'_> {
    /// Runs an act with lists of different lengths: `fixed` parameters first, then the columns of one list after the other.
    ///
    /// PostgreSQL binds every column as an array to the one statement; on SQLite the steps that are marked `{each $n}` run
    /// once for every row of the list that holds parameter n.
    pub(crate) async fn act(&mut self, statement: Statement, fixed: &[Value], lists: &[List]) -> Result<Vec<Row>> {
        dispatch!(self, conn => conn.act(statement, fixed, lists).await, conn.act(statement, fixed, lists))
    }
}

/// The list that holds a parameter, and where its own parameters begin.
#[cfg(any(feature = "sqlite", feature = "turso"))]
fn list_of(lists: &[List], fixed: usize, parameter: usize) -> Option<(&List, usize)> {
    let mut before = fixed;
    for list in lists {
        if parameter <= before + list.len() {
            return Some((list, before));
        }
        before += list.len();
    }
    None
}

/// Decodes every row, in order.
pub(crate) fn decode<T>(
    statement: Statement,
    rows: &[Row],
    mut read: impl FnMut(&mut Fields<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    rows.iter().map(|row| read(&mut row.fields(statement.name))).collect()
}

/// An act, boxed so that it can be handed to whatever owns the connection.
pub(crate) trait Act<T>: for<'c> FnOnce(&'c mut Conn<'_>) -> BoxFuture<'c, Result<T>> + Send + 'static {}
impl<T, F> Act<T> for F where F: for<'c> FnOnce(&'c mut Conn<'_>) -> BoxFuture<'c, Result<T>> + Send + 'static {}

/// A connected database.
#[derive(Clone)]
pub(crate) enum Db {
    Postgres(Arc<postgres::Postgres>),
    #[cfg(feature = "sqlite")]
    Sqlite(Arc<sqlite::Sqlite>),
    #[cfg(feature = "turso")]
    Turso(Arc<turso::Turso>),
}

impl Db {
    /// Runs an act that changes nothing.
    pub(crate) async fn read<T: Send + 'static>(&self, act: impl Act<T>) -> Result<T> {
        self.admit().await?;
        match self {
            Db::Postgres(db) => db.run(act).await,
            #[cfg(feature = "sqlite")]
            Db::Sqlite(db) => db.read(act).await,
            #[cfg(feature = "turso")]
            Db::Turso(db) => db.read(act).await,
        }
    }

    /// Runs an act whose single statement is its own transaction.
    pub(crate) async fn write<T: Send + 'static>(&self, act: impl Act<T>) -> Result<T> {
        self.admit().await?;
        match self {
            Db::Postgres(db) => db.run(act).await,
            #[cfg(feature = "sqlite")]
            Db::Sqlite(db) => db.write(act).await,
            #[cfg(feature = "turso")]
            Db::Turso(db) => db.write(act).await,
        }
    }

    /// Runs an act of several statements in one transaction.
    pub(crate) async fn transact<T: Send + 'static>(&self, act: impl Act<T>) -> Result<T> {
        self.admit().await?;
        match self {
            Db::Postgres(db) => db.transact(act).await,
            #[cfg(feature = "sqlite")]
            Db::Sqlite(db) => db.write(act).await,
            #[cfg(feature = "turso")]
            Db::Turso(db) => db.write(act).await,
        }
    }

    /// Runs an act in one transaction, which a single statement is by itself.
    pub(crate) async fn commit<T: Send + 'static>(&self, single: bool, act: impl Act<T>) -> Result<T> {
        if single { self.write(act).await } else { self.transact(act).await }
    }

    /// Runs SQL text as it is, several statements allowed: for migrations.
    pub(crate) async fn script(&self, text: String) -> Result<()> {
        match self {
            Db::Postgres(db) => db.script(text).await,
            #[cfg(feature = "sqlite")]
            Db::Sqlite(db) => db.script(text).await,
            #[cfg(feature = "turso")]
            Db::Turso(db) => db.script(text).await,
        }
    }

    /// Runs ad-hoc SQL and returns its rows as integers and texts: for migrations, `verify` and tests.
    pub(crate) async fn inspect(&self, text: String) -> Result<Vec<Row>> {
        match self {
            Db::Postgres(db) => db.inspect(text).await,
            #[cfg(feature = "sqlite")]
            Db::Sqlite(db) => db.inspect(text).await,
            #[cfg(feature = "turso")]
            Db::Turso(db) => db.inspect(text).await,
        }
    }

    /// Ends an embedded database: everything is in its file afterwards, and further calls are refused.
    pub(crate) async fn close(&self) -> Result<()> {
        match self {
            Db::Postgres(_) => Ok(()),
            #[cfg(feature = "sqlite")]
            Db::Sqlite(db) => db.close().await,
            #[cfg(feature = "turso")]
            Db::Turso(db) => db.close().await,
        }
    }

    /// Connections that are open, and those of them that nobody uses. An embedded database has one that writes.
    pub(crate) fn connections(&self) -> (usize, usize) {
        match self {
            Db::Postgres(db) => db.connections(),
            #[cfg(any(feature = "sqlite", feature = "turso"))]
            _ => (1, 0),
        }
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match self {
            Db::Postgres(_) => Dialect::Postgres,
            #[cfg(any(feature = "sqlite", feature = "turso"))]
            _ => Dialect::Sqlite,
        }
    }
}

/// The sentence for a table that is not there.
#[cfg(any(feature = "sqlite", feature = "turso"))]
pub(crate) fn not_installed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> crate::error::Error {
    use crate::error::{Error, Kind};
    Error::new(Kind::Schema, "Tenure's tables are missing here: call `install` first").with_source(source)
}
