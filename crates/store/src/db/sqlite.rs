//! The SQLite adapter: one thread that owns the writing connection, a few that own reading ones.
//!
//! Invariants: there is one writer per process, so a write never meets another of its own process; a write is one
//! `BEGIN IMMEDIATE` transaction, so it never has to be upgraded half-way (which fails at once, whatever the busy
//! time-out); a write whose caller has gone is not begun; a job that panics ends neither its thread nor leaves a
//! transaction open; a commit is on the disk when it returns (`synchronous=FULL`) unless the DSN asks otherwise; nothing is
//! acknowledged that is not in the file that the path leads to; when the database is closed, everything is in the file itself.

mod open;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use futures_util::FutureExt as _;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql};
use tokio::sync::oneshot;

use self::open::{checkpoint, connection};
use super::files::Files;
use super::guard::Guard;
use super::{Act, Conn, List, list_of, not_installed};
use crate::combine::asked;
use crate::dsn::FileDsn;
use crate::error::{Error, Kind, Result, kind_of_sqlite, panicked};
use crate::sql::{Dialect, Statement, for_each, many_rows, one_row, rendered, steps};
use crate::value::{Column, Row, Value};

type Job = Box<dyn FnOnce(&Connection) + Send>;

/// Reading connections; a queue reads little beside its writes.
const READERS: usize = 2;
/// How long a write waits for another process's, counted from its call: jobs that wait behind each other then do not add
/// up their waits.
const BUSY: Duration = Duration::from_secs(10);
/// How long the writer sleeps at most before it tries again to get the lock of another process.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Rows in one insert: most of what a row costs is opening the table's indexes anew (one row at a time, bulk ran at 0.61
/// of bare inserts into a table with one index).
const ROWS: usize = 32;

/// A statement: its steps, and if it inserts plain values the same for many rows.
struct Text {
    steps: Vec<String>,
    /// For each step a parameter of the list that it runs for.
    lists: Vec<Option<usize>>,
    many: Option<String>,
}

impl Text {
    fn new(text: &str) -> Self {
        let (lists, bare): (Vec<_>, Vec<_>) = steps(text).map(for_each).unzip();
        Text { steps: bare.into_iter().map(one_row).collect(), lists, many: many_rows(text.trim(), ROWS) }
    }
}

/// An open SQLite database.
pub(crate) struct Sqlite {
    /// None: dropped.
    writer: Option<Sender<Job>>,
    /// The writer's channel again when the database is in memory: there is then only one connection.
    reader: Option<Sender<Job>>,
    texts: Arc<Vec<Text>>,
    /// None: in memory.
    files: Option<Arc<Files>>,
    pub(super) guard: Guard,
    closed: Arc<AtomicBool>,
    /// Whether everything is in the file itself.
    complete: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Sqlite {
    /// Waits until the file is closed, so that a program that ends leaves everything in it.
    fn drop(&mut self) {
        (self.writer, self.reader) = (None, None);
        for thread in self.threads.drain(..) {
            // A job may hold the last reference to its own database.
            if thread.thread().id() != std::thread::current().id() {
                thread.join().unwrap_or_else(|_| tracing::error!("a thread of the SQLite database panicked"));
            }
        }
    }
}

impl Sqlite {
    /// Opens the file, creating it when it is missing.
    pub(crate) fn open(dsn: &FileDsn) -> Result<Self> {
        let texts: Vec<Text> = rendered(Dialect::Sqlite, "").iter().map(|text| Text::new(text)).collect();
        let mut threads = Vec::new();
        let first = connection(dsn, true)?;
        let files = dsn.path.as_deref().map(|path| Arc::new(Files::of(path)));
        let others = match &dsn.path {
            None => Vec::new(),
            Some(_) => (0..READERS).map(|_| connection(dsn, false)).collect::<Result<Vec<_>>>()?,
        };
        // The writer is waited for last: it closes the file behind the readers.
        let reader = (!others.is_empty()).then(|| spawn("tenure-reader", others, |_| Ok(()), &mut threads));
        let writer = spawn("tenure-writer", vec![first], checkpoint, &mut threads);
        let reader = Some(reader.unwrap_or_else(|| writer.clone()));
        let (texts, closed, complete) = (Arc::new(texts), Arc::default(), Arc::default());
        Ok(Sqlite { writer: Some(writer), reader, texts, files, guard: Guard::default(), closed, complete, threads })
    }

    pub(crate) async fn read<T: Send + 'static>(&self, act: impl Act<T>) -> Result<T> {
        let (texts, files) = (self.texts.clone(), self.files.clone());
        self.ask(&self.reader, move |connection, _| {
            files.as_ref().map_or(Ok(()), |files| files.check())?;
            run(connection, &texts, act)
        })
        .await
    }

    pub(crate) async fn write<T: Send + 'static>(&self, act: impl Act<T>) -> Result<T> {
        let (texts, files) = (self.texts.clone(), self.files.clone());
        self.ask(&self.writer, move |connection, caller| {
            transaction(connection, caller, files.as_deref(), |connection| run(connection, &texts, act))
        })
        .await
    }

    pub(crate) async fn script(&self, text: String) -> Result<()> {
        let files = self.files.clone();
        self.ask(&self.writer, move |connection, caller| {
            let body = |connection: &Connection| connection.execute_batch(&text).map_err(error_of);
            transaction(connection, caller, files.as_deref(), body)
        })
        .await
    }

    /// Lets the writes that were begun finish, refuses all others, and moves the write-ahead log into the file. After a
    /// failure it may be tried again.
    pub(crate) async fn close(&self) -> Result<()> {
        let Some(writer) = &self.writer else { return Err(closed()) };
        let (closed, complete, files) = (self.closed.clone(), self.complete.clone(), self.files.clone());
        ask(writer, move |connection, _| {
            closed.store(true, Ordering::Relaxed);
            if !complete.load(Ordering::Relaxed) {
                files.as_ref().map_or(Ok(()), |files| files.check())?;
                checkpoint(connection)?;
                complete.store(true, Ordering::Relaxed);
            }
            Ok(())
        })
        .await
    }

    async fn ask<T: Send + 'static>(
        &self,
        thread: &Option<Sender<Job>>,
        job: impl FnOnce(&Connection, &Caller<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let Some(thread) = thread else { return Err(closed()) };
        let is_closed = self.closed.clone();
        ask(thread, move |connection, caller| {
            if is_closed.load(Ordering::Relaxed) {
                return Err(closed());
            }
            job(connection, caller)
        })
        .await
    }

    pub(crate) async fn inspect(&self, text: String) -> Result<Vec<Row>> {
        let files = self.files.clone();
        self.ask(&self.reader, move |connection, _| {
            files.as_ref().map_or(Ok(()), |files| files.check())?;
            let mut statement = connection.prepare(&text).map_err(error_of)?;
            let mut out = Vec::new();
            collect(&mut statement, [], &mut out)?;
            Ok(out)
        })
        .await
    }

    /// Whether other processes can open this database too.
    pub(crate) fn is_file(&self) -> bool {
        self.files.is_some()
    }

    /// A number that changes when another process has committed. Asked of the writer, because our own commits do not
    /// change what it sees.
    pub(crate) async fn data_version(&self) -> Result<i64> {
        self.ask(&self.writer, |connection, _| {
            connection.query_row("pragma data_version", [], |row| row.get(0)).map_err(error_of)
        })
        .await
    }

    /// Parameter count and column names of a statement, for the statement test.
    #[cfg(feature = "conformance")]
    pub(crate) async fn describe(&self, index: usize) -> Result<(usize, Vec<String>)> {
        let texts = self.texts.clone();
        self.ask(&self.writer, move |connection, _| {
            let mut params = 0;
            let mut columns = Vec::new();
            for step in &texts[index].steps {
                let statement = connection.prepare(step).map_err(error_of)?;
                params = params.max(statement.parameter_count());
                if statement.column_count() > 0 {
                    #[allow(clippy::useless_conversion, reason = "rusqlite 0.39 returns a list here")]
                    let names = statement.column_names().into_iter();
                    columns = names.map(str::to_owned).collect();
                }
            }
            Ok((params, columns))
        })
        .await
    }
}

impl Sqlite {
    /// Runs an act on a connection that is not ours.
    pub(crate) fn run_on<T>(&self, connection: &Connection, act: impl Act<T>) -> Result<T> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(closed());
        }
        self.files.as_ref().map_or(Ok(()), |files| files.check())?;
        run(connection, &self.texts, act)
    }
}

/// Threads that run jobs, each on its own connection, until the last sender is dropped, and then `end`.
fn spawn(
    name: &str,
    connections: Vec<Connection>,
    end: fn(&Connection) -> Result<()>,
    threads: &mut Vec<JoinHandle<()>>,
) -> Sender<Job> {
    let (sender, jobs): (Sender<Job>, Receiver<Job>) = unbounded();
    for connection in connections {
        let jobs = jobs.clone();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Ok(job) = jobs.recv() {
                job(&connection);
            }
            if let Err(error) = end(&connection) {
                tracing::warn!(%error, "the SQLite file was not closed in an orderly way");
            }
        });
        threads.push(thread.expect("the operating system can start a thread"));
    }
    sender
}

fn closed() -> Error {
    Error::new(Kind::Closed, "the SQLite database was closed")
}

/// The caller that waits for a job.
struct Caller<'a> {
    gone: &'a dyn Fn() -> bool,
    /// Until when the job may wait for the lock of another process.
    until: Instant,
}

async fn ask<T: Send + 'static>(
    thread: &Sender<Job>,
    job: impl FnOnce(&Connection, &Caller<'_>) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (reply, answer) = oneshot::channel();
    let until = asked() + BUSY;
    let job: Job = Box::new(move |connection| {
        let caller = Caller { gone: &|| reply.is_closed(), until };
        if (caller.gone)() {
            return;
        }
        let result = catch_unwind(AssertUnwindSafe(|| job(connection, &caller)));
        let result = result.unwrap_or_else(|_| Err(rolled_back(connection, panicked())));
        // A caller that went away does not need its answer.
        drop(reply.send(result));
    });
    thread.send(job).map_err(|_| closed())?;
    answer.await.map_err(|_| closed())?
}

/// Runs an act to its end: nothing that it asks of SQLite ever waits.
fn run<T>(connection: &Connection, texts: &[Text], act: impl Act<T>) -> Result<T> {
    let mut conn = Conn::Sqlite(SqliteConn { connection: send_wrapper::SendWrapper::new(connection), texts });
    let result = act(&mut conn).now_or_never();
    result.expect("an act over SQLite asks nothing but SQLite, which answers at once")
}

fn transaction<T>(
    connection: &Connection,
    caller: &Caller<'_>,
    files: Option<&Files>,
    body: impl FnOnce(&Connection) -> Result<T>,
) -> Result<T> {
    let check = || files.map_or(Ok(()), Files::check);

    connection.busy_timeout(Duration::ZERO).map_err(error_of)?;
    let begun = begin(connection, caller);
    connection.busy_timeout(BUSY).map_err(error_of)?;
    begun?;
    // Before the work, so that nothing is written into a file that has gone; and after the commit, because the file may
    // have gone in between.
    let worked = check().and_then(|()| body(connection));
    match worked {
        Ok(value) => match execute(connection, "commit") {
            Ok(()) => check().map(|()| value).map_err(Error::ambiguous),
            Err(error) => Err(rolled_back(connection, error)),
        },
        Err(error) => Err(rolled_back(connection, error)),
    }
}

/// Begins a transaction as soon as no other process writes, unless the caller leaves or its time is up. SQLite's own
/// busy handler would not notice the caller: calls with a limit of 2 s were carried out 35 s later.
fn begin(connection: &Connection, caller: &Caller<'_>) -> Result<()> {
    let mut pause = Duration::from_millis(1);
    loop {
        let begun = execute(connection, "begin immediate");
        match begun {
            Ok(()) if (caller.gone)() => {
                return Err(rolled_back(connection, Error::new(Kind::Closed, "the caller of a write has gone")));
            }
            Err(error) if error.kind() == Kind::Contended && !(caller.gone)() && Instant::now() < caller.until => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            begun => return begun,
        }
    }
}

fn rolled_back(connection: &Connection, error: Error) -> Error {
    // SQLite has already rolled back after some errors, and then says that there is no transaction.
    if !connection.is_autocommit()
        && let Err(second) = execute(connection, "rollback")
    {
        tracing::error!(%second, "SQLite could not roll back");
    }
    error
}

fn execute(connection: &Connection, text: &str) -> Result<()> {
    connection.prepare_cached(text).and_then(|mut statement| statement.execute([])).map_err(error_of)?;
    Ok(())
}

/// A SQLite connection for the length of one act, on the thread that owns it.
pub(crate) struct SqliteConn<'a> {
    /// An act's future must be `Send` for PostgreSQL's sake; this one never leaves its thread.
    connection: send_wrapper::SendWrapper<&'a Connection>,
    texts: &'a [Text],
}

impl SqliteConn<'_> {
    pub(crate) fn query(&mut self, statement: Statement, params: &[Value]) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for step in &self.texts[statement.index].steps {
            let mut prepared = self.connection.prepare_cached(step).map_err(error_of)?;
            let params = params.iter().take(prepared.parameter_count());
            collect(&mut prepared, rusqlite::params_from_iter(params), &mut rows)?;
        }
        Ok(rows)
    }

    pub(crate) fn execute(&mut self, statement: Statement, params: &[Value]) -> Result<u64> {
        let mut changed = 0;
        for step in &self.texts[statement.index].steps {
            let mut prepared = self.connection.prepare_cached(step).map_err(error_of)?;
            let params = params.iter().take(prepared.parameter_count());
            changed = prepared.execute(rusqlite::params_from_iter(params)).map_err(error_of)? as u64;
        }
        Ok(changed)
    }

    pub(crate) fn each(
        &mut self,
        statement: Statement,
        fixed: &[Value],
        columns: &[Column],
        len: usize,
    ) -> Result<Vec<Row>> {
        let text = &self.texts[statement.index];
        let done = match &text.many {
            Some(many) => self.insert_many(many, fixed, columns, len)?,
            None => 0,
        };
        let mut steps = text
            .steps
            .iter()
            .map(|step| self.connection.prepare_cached(step).map_err(error_of))
            .collect::<Result<Vec<_>>>()?;
        // What does not change from row to row is bound once: bindings outlive an execution.
        let changing: Vec<(usize, &Column)> =
            columns.iter().enumerate().filter(|(_, column)| !column.is_null()).collect();
        for step in &mut steps {
            for at in 1..=step.parameter_count() {
                step.raw_bind_parameter(at, fixed.get(at - 1).unwrap_or(&Value::Null)).map_err(error_of)?;
            }
        }
        let mut rows = Vec::new();
        for n in done..len {
            for step in &mut steps {
                let count = step.parameter_count();
                for (at, column) in &changing {
                    if fixed.len() + at < count {
                        step.raw_bind_parameter(fixed.len() + at + 1, column.cell(n)).map_err(error_of)?;
                    }
                }
                if fixed.len() + columns.len() < count {
                    step.raw_bind_parameter(count, n as i64).map_err(error_of)?;
                }
                run_step(step, &mut rows)?;
            }
        }
        Ok(rows)
    }
}

impl SqliteConn<'_> {
    pub(crate) fn act(&mut self, statement: Statement, fixed: &[Value], lists: &[List]) -> Result<Vec<Row>> {
        let text = &self.texts[statement.index];
        let mut rows = Vec::new();
        for (step, marked) in text.steps.iter().zip(&text.lists) {
            let mut prepared = self.connection.prepare_cached(step).map_err(error_of)?;
            let count = prepared.parameter_count();
            for (at, value) in fixed.iter().enumerate().take(count) {
                prepared.raw_bind_parameter(at + 1, value).map_err(error_of)?;
            }
            match marked.and_then(|parameter| list_of(lists, fixed.len(), parameter)) {
                None => run_step(&mut prepared, &mut rows)?,
                Some((list, before)) => {
                    for n in 0..list.first().map_or(0, Column::len) {
                        for (at, column) in list.iter().enumerate().filter(|(at, _)| before + at < count) {
                            prepared.raw_bind_parameter(before + at + 1, column.cell(n)).map_err(error_of)?;
                        }
                        run_step(&mut prepared, &mut rows)?;
                    }
                }
            }
        }
        Ok(rows)
    }

    /// Inserts as many whole groups of rows as there are. How many rows.
    fn insert_many(&self, text: &str, fixed: &[Value], columns: &[Column], len: usize) -> Result<usize> {
        let groups = len / ROWS;
        if groups == 0 {
            return Ok(0);
        }
        let mut insert = self.connection.prepare_cached(text).map_err(error_of)?;
        for at in 1..=insert.parameter_count() {
            insert.raw_bind_parameter(at, fixed.get(at - 1).unwrap_or(&Value::Null)).map_err(error_of)?;
        }
        for group in 0..groups {
            for row in 0..ROWS {
                let before = fixed.len() + row * columns.len();
                for (at, column) in columns.iter().enumerate().filter(|(_, column)| !column.is_null()) {
                    insert.raw_bind_parameter(before + at + 1, column.cell(group * ROWS + row)).map_err(error_of)?;
                }
            }
            insert.raw_execute().map_err(error_of)?;
        }
        Ok(groups * ROWS)
    }
}

/// Runs a bound statement once more and keeps what it returns.
fn run_step(step: &mut rusqlite::Statement<'_>, out: &mut Vec<Row>) -> Result<()> {
    let width = step.column_count();
    if width == 0 {
        return step.raw_execute().map(drop).map_err(error_of);
    }
    let mut answer = step.raw_query();
    while let Some(row) = answer.next().map_err(error_of)? {
        out.push(values(row, width)?);
    }
    Ok(())
}

fn collect(statement: &mut rusqlite::Statement<'_>, params: impl rusqlite::Params, out: &mut Vec<Row>) -> Result<()> {
    let width = statement.column_count();
    let mut rows = statement.query(params).map_err(error_of)?;
    while let Some(row) = rows.next().map_err(error_of)? {
        out.push(values(row, width)?);
    }
    Ok(())
}

/// The fields of a row; a text that is not UTF-8 and a number that is not whole are errors.
pub(super) fn values(row: &rusqlite::Row<'_>, width: usize) -> Result<Row> {
    let read = |at| {
        Ok(match row.get_ref(at).map_err(error_of)? {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(value) => Value::Int(value),
            ValueRef::Text(value) => match std::str::from_utf8(value) {
                Ok(value) => Value::Text(value.to_owned()),
                Err(error) => {
                    return Err(
                        Error::new(Kind::Corrupt, "a text in the SQLite database is not UTF-8").with_source(error)
                    );
                }
            },
            ValueRef::Blob(value) => Value::Bytes(Bytes::copy_from_slice(value)),
            ValueRef::Real(value) => {
                return Err(Error::new(Kind::Corrupt, format!("an integer was expected in SQLite, {value} was found")));
            }
        })
    };
    (0..width).map(read).collect::<Result<_>>().map(Row::Values)
}

impl Column {
    fn cell(&self, n: usize) -> ToSqlOutput<'_> {
        let value = match self {
            Column::Ints(values) => values[n].map_or(ValueRef::Null, ValueRef::Integer),
            Column::Bools(values) => ValueRef::Integer(values[n].into()),
            Column::Texts(values) => values[n].as_ref().map_or(ValueRef::Null, |text| ValueRef::Text(text.as_bytes())),
            Column::Bytes(values) => ValueRef::Blob(&values[n]),
            Column::Nulls(_) => ValueRef::Null,
        };
        ToSqlOutput::Borrowed(value)
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Null => ValueRef::Null,
            Value::Int(value) => ValueRef::Integer(*value),
            Value::Bool(value) => ValueRef::Integer((*value).into()),
            Value::Text(value) => ValueRef::Text(value.as_bytes()),
            Value::Bytes(value) => ValueRef::Blob(value),
            Value::Ints(_) => ValueRef::Null,
        }))
    }
}

fn error_of(error: rusqlite::Error) -> Error {
    match &error {
        rusqlite::Error::SqliteFailure(code, text) => {
            let text = text.clone().unwrap_or_default();
            if code.extended_code == 1 && text.starts_with("no such table: tenure_") {
                return not_installed(error);
            }
            let kind = kind_of_sqlite(code.extended_code);
            let advice = match kind {
                Kind::Contended => ": another process is writing; try again",
                Kind::ReadOnly => ": the file cannot be written, check its permissions",
                _ => "",
            };
            Error::new(kind, format!("SQLite refused: {text}{advice}")).with_source(error)
        }
        rusqlite::Error::SqlInputError { msg, .. } if msg.starts_with("no such table: tenure_") => not_installed(error),
        _ => Error::new(Kind::Database, format!("SQLite: {error}")).with_source(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dsn::Durability;

    fn in_file() -> (tempfile::TempDir, Sqlite, Connection) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let sqlite = Sqlite::open(&FileDsn { path: Some(path.clone()), durability: Durability::CrashOnly }).unwrap();
        let other = Connection::open(path).unwrap();
        other.execute_batch("create table t (n integer)").unwrap();
        (folder, sqlite, other)
    }

    fn count(connection: &Connection) -> i64 {
        connection.query_row("select count(*) from t", [], |row| row.get(0)).unwrap()
    }

    fn insert(sqlite: &Sqlite) -> impl Future<Output = Result<()>> {
        sqlite.script("insert into t values (1)".to_owned())
    }

    #[tokio::test]
    async fn write_whose_caller_has_gone_is_not_carried_out() {
        let (_folder, sqlite, other) = in_file();
        other.execute_batch("begin immediate").unwrap();
        let started = Instant::now();
        let limit = Duration::from_millis(300);
        // The first waits for the lock, the second behind the first.
        let (first, second) =
            (tokio::time::timeout(limit, insert(&sqlite)), tokio::time::timeout(limit, insert(&sqlite)));
        let (first, second) = tokio::join!(first, second);
        assert!(first.is_err() && second.is_err());
        other.execute_batch("commit").unwrap();
        insert(&sqlite).await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert_eq!(count(&other), 1, "a write was carried out after its caller had gone");
    }

    #[tokio::test]
    async fn waits_for_the_lock_do_not_add_up() {
        let (_folder, sqlite, other) = in_file();
        other.execute_batch("begin immediate").unwrap();
        let started = Instant::now();
        let (first, second, third) = tokio::join!(insert(&sqlite), insert(&sqlite), insert(&sqlite));
        assert!(started.elapsed() < BUSY + Duration::from_secs(5), "{:?}", started.elapsed());
        for result in [first, second, third] {
            assert_eq!(result.unwrap_err().kind(), Kind::Contended);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn claim_is_answered_when_its_wait_is_over_although_another_process_writes() {
        for keyed in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("x.db");
            let store = crate::Store::connect(&path.display().to_string()).await.unwrap();
            store.install().await.unwrap();
            let queue = store.queue_create("jobs", crate::Settings::default()).await.unwrap();
            let key = keyed.then(|| "k".to_owned());
            let message = crate::NewMessage { key, ..crate::NewMessage::new("x") };
            store.enqueue(&queue, None, vec![message]).await.unwrap();
            let other = Connection::open(&path).unwrap();
            other.execute_batch("begin immediate").unwrap();
            let (started, wait) = (Instant::now(), Duration::from_secs(1));
            let found = if keyed {
                store.claim_key(&queue.lanes, None, None, wait).await.map(|batch| batch.is_some())
            } else {
                let claim = crate::Claim { wait, ..crate::Claim::from_queue(&queue, 1) };
                store.claim(claim).await.map(|messages| !messages.is_empty())
            };
            let took = started.elapsed();
            assert!(took < BUSY / 2, "keyed: {keyed}, {took:?}: {found:?}");
            assert!(found.as_ref().map_or_else(Error::is_retryable, |found| !found), "{found:?}");
            other.execute_batch("commit").unwrap();
            let again = if keyed {
                store.claim_key(&queue.lanes, None, None, BUSY).await.unwrap().map(|batch| batch.messages[0].attempts)
            } else {
                let claim = crate::Claim { wait: BUSY, ..crate::Claim::from_queue(&queue, 1) };
                store.claim(claim).await.unwrap().first().map(|message| message.attempts)
            };
            assert_eq!(again, Some(1));
        }
    }

    #[tokio::test]
    async fn panic_in_an_act_is_rolled_back_and_the_writer_goes_on() {
        let (_folder, sqlite, other) = in_file();
        let panicking = sqlite.ask(&sqlite.writer, |connection, caller| {
            transaction(connection, caller, None, |connection| -> Result<()> {
                connection.execute_batch("insert into t values (1)").unwrap();
                panic!("injected");
            })
        });
        let error = panicking.await.unwrap_err();
        assert_eq!((error.kind(), error.is_ambiguous()), (Kind::Database, false));
        let error = sqlite.write(|_| -> futures_util::future::BoxFuture<'_, Result<()>> { panic!("injected") }).await;
        assert_eq!(error.unwrap_err().kind(), Kind::Database);
        insert(&sqlite).await.unwrap();
        assert_eq!(count(&other), 1);
    }
}
