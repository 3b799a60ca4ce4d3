//! The adapter for the embedded Turso engine, which runs the SQLite statements.
//!
//! Invariants: one connection, used by one act at a time; a write is one `BEGIN IMMEDIATE` transaction; after a write
//! has been submitted it is never blindly repeated (a rival did, and got phantom duplicates); nothing is acknowledged that
//! is not in the file that the path leads to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tokio::sync::{Mutex, MutexGuard};
use turso::{Connection, Database};

use super::files::Files;
use super::guard::Guard;
use super::{Act, Conn, List, list_of, not_installed};
use crate::dsn::FileDsn;
use crate::error::{Error, Kind, Result};
use crate::sql::{Dialect, Statement, for_each, highest_parameter, one_row, rendered, steps};
use crate::value::{Column, Row, Value};

/// A step of a statement, and a parameter of the list that it runs for.
type Step = (Option<usize>, String);

/// An open Turso database.
pub(crate) struct Turso {
    connection: Mutex<Connection>,
    texts: Arc<Vec<Vec<Step>>>,
    /// None: in memory.
    files: Option<Files>,
    pub(super) guard: Guard,
    closed: AtomicBool,
    /// Whether everything is in the file itself.
    complete: AtomicBool,
    /// Dropping it would close the file under its connection.
    _database: Database,
}

impl Turso {
    /// Opens the file, creating it when it is missing.
    pub(crate) async fn open(dsn: &FileDsn) -> Result<Self> {
        let path = dsn.path.as_ref().map_or_else(|| ":memory:".to_owned(), |path| path.display().to_string());
        let database = turso::Builder::new_local(&path).build().await.map_err(|error| open_error(&path, error))?;
        let connection = database.connect().map_err(|error| open_error(&path, error))?;
        let step = |text| {
            let (list, step) = for_each(text);
            (list, one_row(step))
        };
        let texts = rendered(Dialect::Sqlite, "").iter().map(|text| steps(text).map(step).collect()).collect();
        let (connection, texts, guard) = (Mutex::new(connection), Arc::new(texts), Guard::default());
        let (closed, complete) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut turso = Turso { connection, texts, files: None, guard, closed, complete, _database: database };
        // A write of nothing, so that a file that cannot be written is refused here and not at the first enqueue.
        turso.write(|_| Box::pin(async { Ok(()) })).await?;
        turso.files = dsn.path.as_deref().map(Files::of);
        Ok(turso)
    }

    async fn run<T>(&self, connection: &Connection, act: impl Act<T>) -> Result<T> {
        act(&mut Conn::Turso(TursoConn { connection, texts: &self.texts })).await
    }

    fn check(&self) -> Result<()> {
        self.files.as_ref().map_or(Ok(()), Files::check)
    }

    async fn lock(&self) -> Result<MutexGuard<'_, Connection>> {
        let connection = self.connection.lock().await;
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Closed, "the Turso database was closed"));
        }
        Ok(connection)
    }

    /// Lets the write that was begun finish, refuses all others, and moves the write-ahead log into the file. After a failure
    /// it may be tried again.
    pub(crate) async fn close(&self) -> Result<()> {
        let connection = self.connection.lock().await;
        self.closed.store(true, Ordering::Relaxed);
        if !self.complete.load(Ordering::Relaxed) {
            self.check()?;
            checkpoint(&connection).await?;
            self.complete.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(crate) async fn read<T>(&self, act: impl Act<T>) -> Result<T> {
        let connection = self.lock().await?;
        self.check()?;
        self.run(&connection, act).await
    }

    pub(crate) async fn write<T>(&self, act: impl Act<T>) -> Result<T> {
        let connection = self.begin().await?;
        let result = self.run(&connection, act).await;
        finish(&connection, result).await.and_then(|value| self.check().map(|()| value).map_err(Error::ambiguous))
    }

    pub(crate) async fn script(&self, text: String) -> Result<()> {
        let connection = self.begin().await?;
        let result = async {
            for step in steps(&text) {
                connection.execute(step, ()).await.map_err(error_of)?;
            }
            Ok(())
        }
        .await;
        finish(&connection, result).await
    }

    pub(crate) async fn inspect(&self, text: String) -> Result<Vec<Row>> {
        let connection = self.lock().await?;
        self.check()?;
        let mut rows = Vec::new();
        collect(&mut connection.prepare(&text).await.map_err(error_of)?, Vec::new(), &mut rows).await?;
        Ok(rows)
    }

    async fn begin(&self) -> Result<MutexGuard<'_, Connection>> {
        let connection = self.lock().await?;
        self.check()?;
        // An act that was dropped half-way left its transaction open: nobody was told that it was done.
        if !connection.is_autocommit().map_err(error_of)? {
            connection.execute("rollback", ()).await.map_err(error_of)?;
        }
        connection.execute("begin immediate", ()).await.map_err(error_of)?;
        Ok(connection)
    }

    /// Parameter count and column names of a statement, for the statement test.
    #[cfg(feature = "conformance")]
    pub(crate) async fn describe(&self, index: usize) -> Result<Vec<String>> {
        let connection = self.connection.lock().await;
        let mut columns = Vec::new();
        for (_, step) in &self.texts[index] {
            let statement = connection.prepare(step).await.map_err(error_of)?;
            if statement.column_count() > 0 {
                columns = statement.column_names();
            }
        }
        Ok(columns)
    }
}

async fn finish<T>(connection: &Connection, result: Result<T>) -> Result<T> {
    let result = match result {
        Ok(value) => connection.execute("commit", ()).await.map_err(error_of).map(|_| value),
        Err(error) => Err(error),
    };
    if result.is_err()
        && !connection.is_autocommit().unwrap_or(false)
        && let Err(second) = connection.execute("rollback", ()).await
    {
        tracing::error!(%second, "Turso could not roll back");
    }
    result
}

/// Moves the write-ahead log into the file and empties it, unless it is being read at this moment.
async fn checkpoint(connection: &Connection) -> Result<()> {
    let mut rows = Vec::new();
    let mut statement = connection.prepare("pragma wal_checkpoint(truncate)").await.map_err(error_of)?;
    collect(&mut statement, Vec::new(), &mut rows).await?;
    let is_busy = rows.first().map(|row| row.fields("pragma wal_checkpoint").int()).transpose()?;
    if is_busy == Some(0) {
        return Ok(());
    }
    let message = "the write-ahead log of the Turso file is in use, so the newest writes are in its -wal file: keep the two together";
    Err(Error::new(Kind::Contended, message))
}

/// A Turso connection for the length of one act.
pub(crate) struct TursoConn<'a> {
    connection: &'a Connection,
    texts: &'a [Vec<Step>],
}

impl TursoConn<'_> {
    pub(crate) async fn query(&mut self, statement: Statement, params: &[Value]) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (_, step) in &self.texts[statement.index] {
            let mut prepared = self.connection.prepare_cached(step).await.map_err(error_of)?;
            let params = params.iter().take(highest_parameter(step, '?')).map(Value::to_turso).collect();
            collect(&mut prepared, params, &mut rows).await?;
        }
        Ok(rows)
    }

    pub(crate) async fn execute(&mut self, statement: Statement, params: &[Value]) -> Result<u64> {
        let mut changed = 0;
        for (_, step) in &self.texts[statement.index] {
            let mut prepared = self.connection.prepare_cached(step).await.map_err(error_of)?;
            let params: Vec<_> = params.iter().take(highest_parameter(step, '?')).map(Value::to_turso).collect();
            changed = prepared.execute(params).await.map_err(error_of)?;
        }
        Ok(changed)
    }

    pub(crate) async fn each(
        &mut self,
        statement: Statement,
        fixed: &[Value],
        columns: &[Column],
        len: usize,
    ) -> Result<Vec<Row>> {
        let mut rows = Vec::with_capacity(len);
        let mut prepared = Vec::new();
        for (_, step) in &self.texts[statement.index] {
            let count = highest_parameter(step, '?');
            prepared.push((self.connection.prepare_cached(step).await.map_err(error_of)?, count));
        }
        for n in 0..len {
            let cells = || {
                let ordinal = std::iter::once(turso::Value::Integer(n as i64));
                fixed.iter().map(Value::to_turso).chain(columns.iter().map(|column| column.to_turso(n))).chain(ordinal)
            };
            for (step, count) in &mut prepared {
                collect(step, cells().take(*count).collect(), &mut rows).await?;
                step.reset().map_err(error_of)?;
            }
        }
        Ok(rows)
    }

    pub(crate) async fn act(&mut self, statement: Statement, fixed: &[Value], lists: &[List]) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (marked, step) in &self.texts[statement.index] {
            let count = highest_parameter(step, '?');
            let mut prepared = self.connection.prepare_cached(step).await.map_err(error_of)?;
            let fixed: Vec<_> = fixed.iter().map(Value::to_turso).collect();
            match marked.and_then(|parameter| list_of(lists, fixed.len(), parameter)) {
                None => collect(&mut prepared, fixed.into_iter().take(count).collect(), &mut rows).await?,
                Some((list, before)) => {
                    for n in 0..list.first().map_or(0, Column::len) {
                        let mut params = fixed.clone();
                        params.resize(before, turso::Value::Null);
                        params.extend(list.iter().map(|column| column.to_turso(n)));
                        params.truncate(count);
                        collect(&mut prepared, params, &mut rows).await?;
                        prepared.reset().map_err(error_of)?;
                    }
                }
            }
        }
        Ok(rows)
    }
}

async fn collect(statement: &mut turso::Statement, params: Vec<turso::Value>, out: &mut Vec<Row>) -> Result<()> {
    let mut rows = statement.query(params).await.map_err(error_of)?;
    let width = rows.column_count();
    while let Some(row) = rows.next().await.map_err(error_of)? {
        let read = |at| {
            Ok(match row.get_value(at).map_err(error_of)? {
                turso::Value::Null => Value::Null,
                turso::Value::Integer(value) => Value::Int(value),
                turso::Value::Text(value) => Value::Text(value),
                turso::Value::Blob(value) => Value::Bytes(Bytes::from(value)),
                turso::Value::Real(value) => {
                    let message = format!("an integer was expected in Turso, {value} was found");
                    return Err(Error::new(Kind::Corrupt, message));
                }
            })
        };
        out.push(Row::Values((0..width).map(read).collect::<Result<_>>()?));
    }
    Ok(())
}

impl Value {
    fn to_turso(&self) -> turso::Value {
        match self {
            Value::Null => turso::Value::Null,
            Value::Int(value) => turso::Value::Integer(*value),
            Value::Bool(value) => turso::Value::Integer((*value).into()),
            Value::Text(value) => turso::Value::Text(value.clone()),
            Value::Bytes(value) => turso::Value::Blob(value.to_vec()),
            Value::Ints(_) => turso::Value::Null,
        }
    }
}

impl Column {
    fn to_turso(&self, n: usize) -> turso::Value {
        match self {
            Column::Ints(values) => values[n].map_or(turso::Value::Null, turso::Value::Integer),
            Column::Bools(values) => turso::Value::Integer(values[n].into()),
            Column::Texts(values) => values[n].clone().map_or(turso::Value::Null, turso::Value::Text),
            Column::Bytes(values) => turso::Value::Blob(values[n].to_vec()),
            Column::Nulls(_) => turso::Value::Null,
        }
    }
}

fn open_error(path: &str, error: turso::Error) -> Error {
    let text = error.to_string();
    let (kind, advice) = match &error {
        turso::Error::Readonly(_) => (Kind::ReadOnly, "the file cannot be written: check its permissions"),
        turso::Error::NotAdb(_) | turso::Error::Corrupt(_) => (Kind::Corrupt, "the file is not a Turso database"),
        turso::Error::IoError(std::io::ErrorKind::PermissionDenied, _) => {
            (Kind::ReadOnly, "the file or its folder cannot be written: check their permissions")
        }
        turso::Error::IoError(std::io::ErrorKind::NotFound, _) => {
            (Kind::DatabaseMissing, "its folder does not exist: create it first")
        }
        // The engine reports its own file lock as a plain error, and the text is all there is.
        turso::Error::Error(_) if text.contains("locked") => {
            (Kind::Locked, "another process has it open, and Turso allows one process only")
        }
        _ => (Kind::Unavailable, "the file cannot be opened"),
    };
    Error::new(kind, format!("cannot open the Turso database {path}: {advice}")).with_source(error)
}

fn error_of(error: turso::Error) -> Error {
    let kind = match &error {
        turso::Error::Busy(_) | turso::Error::BusySnapshot(_) => Kind::Contended,
        turso::Error::Constraint(_) => Kind::AlreadyExists,
        turso::Error::Readonly(_) => Kind::ReadOnly,
        turso::Error::DatabaseFull(_) | turso::Error::IoError(..) => Kind::Unavailable,
        turso::Error::NotAdb(_) | turso::Error::Corrupt(_) => Kind::Corrupt,
        turso::Error::Error(text) if text.contains("no such table: tenure_") => return not_installed(error),
        _ => Kind::Database,
    };
    Error::new(kind, format!("Turso refused: {error}")).with_source(error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[tokio::test]
    async fn a_close_beside_a_reader_of_the_log_says_that_it_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        let dsn = FileDsn { path: Some(path), durability: crate::dsn::Durability::Full };
        let turso = Turso::open(&dsn).await.unwrap();
        turso.script("create table a (x integer); insert into a values (1)".into()).await.unwrap();
        let reader = turso._database.connect().unwrap();
        reader.execute("begin", ()).await.unwrap();
        let mut rows = Vec::new();
        let mut statement = reader.prepare("select x from a").await.unwrap();
        collect(&mut statement, Vec::new(), &mut rows).await.unwrap();
        turso.script("insert into a values (2)".into()).await.unwrap();
        let error = turso.close().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Contended, "{error:?}");
        assert!(error.to_string().contains("-wal"), "{error}");
        drop(statement);
        reader.execute("rollback", ()).await.unwrap();
        drop(reader);
        turso.close().await.unwrap();
        turso.close().await.unwrap();
    }
}
