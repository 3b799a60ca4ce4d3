//! The PostgreSQL adapter: a pool of prepared connections, TLS, and a connection of its own for LISTEN.
//!
//! Invariants: every statement has a time limit, at the server and a little later here, and a connection whose statement
//! was not answered is closed; plans are pinned to indexes by session settings, because a plan made while a queue was
//! empty otherwise scans the table once it is full (measured: the same design swings between 2.7k/s and 9.5k/s); behind
//! PgBouncer in transaction mode nothing is prepared and nothing is set, and each statement is planned with its real
//! parameters instead.

mod connect;
mod lent;
mod tls;
pub(crate) mod wire;

use std::collections::HashMap;
use std::error::Error as StdError;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{Pool, PoolError, QueueMode};
use deadpool_postgres::ClientWrapper;
use tokio::sync::mpsc;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres_rustls::MakeRustlsConnect;

use self::connect::{Connector, listener_name};
use self::lent::{Failed, Lent, answer, silent};
use super::guard::Guard;
use super::{Act, Conn, List};
use crate::dsn::PostgresDsn;
use crate::error::{Error, Kind, Result};
use crate::sql::{Statement, conditions, highest_parameter, rendered, without};
use crate::value::{Column, Row, Value};
use crate::wait::hub::channel;
use crate::wait::news::Outbox;

/// How much longer a statement's answer is waited for here than at the server, whose answer says more.
const GRACE: Duration = Duration::from_secs(3);
/// How long a caller waits for a free connection.
const POOL_WAIT: Duration = Duration::from_secs(30);
/// How often a silent LISTEN connection is asked whether it still works: a frozen server would never notify again. As long
/// as a statement's own limit, because until then the pooled connections hang too; every 10 s raised the statements of an
/// idle runtime from 1.9 to 2.05 a second, above its floor of 2.
const PROBE_LISTENER: Duration = Duration::from_secs(30);

/// A connected PostgreSQL database.
pub(crate) struct Postgres {
    pool: Pool<Connector>,
    /// How to LISTEN: not at all behind a pooler that hides the server.
    listen: Option<Connector>,
    texts: Texts,
    prepared: bool,
    /// How long the answer to a statement is waited for.
    limit: Duration,
    pub(crate) schema: String,
    pub(super) guard: Guard,
    address: String,
}

impl Postgres {
    /// Connects once to see that it works, so that a wrong DSN fails here and now.
    pub(crate) async fn connect(dsn: &PostgresDsn) -> Result<Self> {
        let tls = MakeRustlsConnect::new(tls::config(dsn.verify)?);
        let listen = Connector::listening(dsn, &channel(&dsn.schema), tls.clone());
        let connector = Connector::pooled(dsn, tls);
        let address = connector.address();
        // Making a connection has no limit here, because each host has its own.
        let pool = Pool::builder(connector)
            .max_size(dsn.pool)
            .runtime(Runtime::Tokio1)
            // The connection used last is the one whose server process is warm.
            .queue_mode(QueueMode::Lifo)
            .wait_timeout(Some(POOL_WAIT))
            .build()
            .map_err(|error| Error::new(Kind::Database, "cannot build a connection pool").with_source(error))?;
        let postgres = Postgres {
            pool,
            listen,
            texts: Texts::new(&dsn.schema),
            prepared: !dsn.pgbouncer,
            limit: dsn.statement_timeout + GRACE,
            schema: dsn.schema.clone(),
            guard: Guard::default(),
            address,
        };
        drop(postgres.client().await?);
        Ok(postgres)
    }

    /// Connections that are open, and those of them that nobody uses.
    pub(crate) fn connections(&self) -> (usize, usize) {
        let status = self.pool.status();
        (status.size, status.available)
    }

    async fn client(&self) -> Result<Lent> {
        match self.pool.get().await {
            Ok(object) => Ok(Lent::new(object, self.limit)),
            Err(PoolError::Backend(error)) => Err(error),
            Err(PoolError::Timeout(_)) => {
                let message =
                    format!("no connection to PostgreSQL at {} became free in time: raise `pool_size`", self.address);
                Err(Error::new(Kind::Unavailable, message))
            }
            Err(error) => {
                let message = format!("no connection to PostgreSQL at {}: {error}", self.address);
                Err(Error::new(Kind::Unavailable, message))
            }
        }
    }

    fn conn<'a>(&'a self, lent: &'a Lent, commits: bool) -> PgConn<'a> {
        let prepared = self.prepared.then(|| lent.client());
        PgConn { client: lent.client(), lent: Some(lent), prepared, texts: &self.texts, limit: self.limit, commits }
    }

    /// Over a connection that is not ours: nothing is prepared on it, so that it stays as it was.
    pub(crate) fn borrowed<'a>(&'a self, client: &'a Client) -> PgConn<'a> {
        PgConn { client, lent: None, prepared: None, texts: &self.texts, limit: self.limit, commits: false }
    }

    /// Says in a transaction what will be ready when it commits. The sender 0 is no process: this one listens too. Whether the
    /// transaction is above READ COMMITTED, which the same round trip tells.
    pub(crate) async fn notify_in(&self, client: &Client, ready: &Outbox) -> Result<bool> {
        let channel = channel(&self.schema);
        let text = "select pg_notify($1, $2)::text, current_setting('transaction_isolation') <> 'read committed'";
        let mut above = false;
        for payload in ready.payloads(0) {
            let params: [(&(dyn ToSql + Sync), Type); 2] = [(&channel, Type::TEXT), (&payload, Type::TEXT)];
            let rows = answer(self.limit, client.query_typed(text, &params)).await.map_err(error_of)?;
            above = rows[0].try_get(1).map_err(error_of)?;
        }
        Ok(above)
    }

    pub(crate) async fn run<T>(&self, act: impl Act<T>) -> Result<T> {
        let lent = self.client().await?;
        act(&mut Conn::Postgres(self.conn(&lent, true))).await
    }

    pub(crate) async fn transact<T>(&self, act: impl Act<T>) -> Result<T> {
        let lent = self.client().await?;
        lent.answer(lent.client().batch_execute("begin")).await.map_err(error_of)?;
        // When this future is dropped half-way, the connection is closed and the server rolls back.
        lent.in_transaction(true);
        let result = act(&mut Conn::Postgres(self.conn(&lent, false))).await;
        match result {
            Ok(value) => {
                let commit = lent.answer(lent.client().batch_execute("commit")).await;
                commit.map_err(error_of_write)?;
                lent.in_transaction(false);
                Ok(value)
            }
            Err(error) => {
                if lent.answer(lent.client().batch_execute("rollback")).await.is_ok() {
                    lent.in_transaction(false);
                }
                Err(error)
            }
        }
    }

    /// Runs several statements. The server limits each of them; migrations that find their locks taken and then find much
    /// to do may take as long as two.
    pub(crate) async fn script(&self, text: String) -> Result<()> {
        let lent = self.client().await?;
        lent.answer_within(2 * self.limit, lent.client().batch_execute(&text)).await.map_err(error_of_write)
    }

    pub(crate) async fn inspect(&self, text: String) -> Result<Vec<Row>> {
        let lent = self.client().await?;
        let rows = lent.answer(lent.client().query(&text, &[])).await.map_err(error_of)?;
        Ok(rows.into_iter().map(Row::Postgres).collect())
    }

    /// Parameter count and column names of a statement, for the statement test.
    #[cfg(feature = "conformance")]
    pub(crate) async fn describe(&self, index: usize) -> Result<(usize, Vec<String>)> {
        let lent = self.client().await?;
        let prepare = lent.client().prepare(&self.texts.0[index].whole.text);
        let statement = lent.answer(prepare).await.map_err(error_of)?;
        Ok((statement.params().len(), statement.columns().iter().map(|c| c.name().to_owned()).collect()))
    }

    /// Sends one NOTIFY outside of any write transaction, without waiting for the disk.
    pub(crate) async fn notify(&self, channel: &str, payload: &str) -> Result<()> {
        let lent = self.client().await?;
        let params: [(&(dyn ToSql + Sync), Type); 2] = [(&channel, Type::TEXT), (&payload, Type::TEXT)];
        let text = "select set_config('synchronous_commit', 'off', true), pg_notify($1, $2)";
        lent.answer(lent.client().query_typed(text, &params)).await.map_err(error_of)?;
        Ok(())
    }

    /// How many processes listen on this channel: each has one connection that is named after it.
    pub(crate) async fn listeners(&self, channel: &str) -> Result<i64> {
        let lent = self.client().await?;
        let text = "select count(*) from pg_stat_activity where application_name = $1 and datname = current_database()";
        let params: [(&(dyn ToSql + Sync), Type); 1] = [(&listener_name(channel), Type::TEXT)];
        let rows = lent.answer(lent.client().query_typed(text, &params)).await.map_err(error_of)?;
        rows[0].try_get(0).map_err(error_of)
    }

    /// A connection of its own that listens.
    pub(crate) async fn listen(&self, channel: &str) -> Result<Listener> {
        let Some(connector) = &self.listen else {
            let message = "behind a pooler nothing can be heard: name the server itself with direct=host:port";
            return Err(Error::new(Kind::Unsupported, message));
        };
        let (sender, notes) = mpsc::channel(1024);
        let client = connector.connect(Some(sender)).await?;
        let listen = format!("listen {}", crate::sql::quoted(channel));
        answer(connector.limit(), client.batch_execute(&listen)).await.map_err(error_of)?;
        Ok(Listener { notes, client, limit: connector.limit() })
    }
}

/// Yields the payload of every NOTIFY, and ends when the connection does.
pub(crate) struct Listener {
    notes: mpsc::Receiver<String>,
    /// Dropping the client closes the connection.
    client: ClientWrapper,
    limit: Duration,
}

impl Listener {
    /// The next payload; none when the connection is lost, which includes a server that no longer answers.
    pub(crate) async fn next(&mut self) -> Option<String> {
        loop {
            if let Ok(note) = tokio::time::timeout(PROBE_LISTENER, self.notes.recv()).await {
                return note;
            }
            if answer(self.limit, self.client.batch_execute("")).await.is_err() {
                return None;
            }
        }
    }
}

/// Every statement as this schema runs it.
struct Texts(Vec<Text>);

struct Text {
    /// With all its parts, as written.
    written: String,
    /// With all its parts, as it runs.
    whole: Variant,
    /// The parameters that its parts hang on, and what is left of it when some of them are wanted.
    conditions: Vec<usize>,
    variants: Mutex<HashMap<Vec<bool>, Arc<Variant>>>,
}

/// A text and the parameters it has, by their numbers in the file.
struct Variant {
    text: String,
    params: Vec<usize>,
}

impl Text {
    fn new(written: String) -> Self {
        let conditions = conditions(&written);
        let whole = if conditions.is_empty() {
            Variant { text: written.clone(), params: (1..=highest_parameter(&written, '$')).collect() }
        } else {
            let (text, params) = without(&written, |_| true);
            Variant { text, params }
        };
        Text { written, whole, conditions, variants: Mutex::default() }
    }

    /// The text with the parts for which there is something to do.
    fn variant(&self, wanted: impl Fn(usize) -> bool) -> Arc<Variant> {
        let key: Vec<bool> = self.conditions.iter().map(|condition| wanted(*condition)).collect();
        let mut variants = self.variants.lock().unwrap_or_else(PoisonError::into_inner);
        let made = variants.entry(key).or_insert_with(|| {
            let (text, params) = without(&self.written, wanted);
            Arc::new(Variant { text, params })
        });
        made.clone()
    }
}

impl Texts {
    fn new(schema: &str) -> Self {
        Texts(rendered(crate::sql::Dialect::Postgres, schema).into_iter().map(Text::new).collect())
    }

    fn text(&self, statement: Statement) -> &str {
        &self.0[statement.index].whole.text
    }

    fn params(&self, statement: Statement) -> usize {
        self.0[statement.index].whole.params.len()
    }
}

/// A PostgreSQL connection for the length of one act.
pub(crate) struct PgConn<'a> {
    client: &'a Client,
    /// What closes the connection if it is ours and a statement is not answered.
    lent: Option<&'a Lent>,
    /// The same connection with its cache of prepared statements, where there may be one.
    prepared: Option<&'a ClientWrapper>,
    texts: &'a Texts,
    limit: Duration,
    /// Whether each statement is its own transaction.
    commits: bool,
}

impl PgConn<'_> {
    /// Statements come pinned: the layers below would otherwise each hold a copy of the future, which overflowed stacks.
    async fn answer<T>(&self, statement: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Failed> {
        match self.lent {
            Some(lent) => lent.answer(statement).await,
            None => answer(self.limit, statement).await,
        }
    }

    async fn prepare(&self, client: &ClientWrapper, text: &str) -> Result<tokio_postgres::Statement> {
        self.answer(pin!(client.prepare_cached(text))).await.map_err(error_of)
    }

    /// The error of a statement: in a transaction, what was not committed was not done.
    fn failed(&self, failed: Failed) -> Error {
        if self.commits { error_of_write(failed) } else { error_of(failed) }
    }

    async fn run(&self, text: &str, params: &[&(dyn ToSql + Sync)], types: &[Type]) -> Result<Vec<Row>> {
        let rows = if let Some(client) = self.prepared {
            let prepared = self.prepare(client, text).await?;
            self.answer(pin!(self.client.query(&prepared, params))).await
        } else {
            let typed: Vec<_> = params.iter().copied().zip(types.iter().cloned()).collect();
            self.answer(pin!(self.client.query_typed(text, &typed))).await
        };
        Ok(rows.map_err(|failed| self.failed(failed))?.into_iter().map(Row::Postgres).collect())
    }

    pub(crate) async fn query(&mut self, statement: Statement, params: &[Value]) -> Result<Vec<Row>> {
        let types: Vec<_> = params.iter().map(Value::pg_type).collect();
        let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|value| value as _).collect();
        self.run(self.texts.text(statement), &params, &types).await
    }

    pub(crate) async fn execute(&mut self, statement: Statement, params: &[Value]) -> Result<u64> {
        let text = self.texts.text(statement);
        let changed = if let Some(client) = self.prepared {
            let prepared = self.prepare(client, text).await?;
            let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|value| value as _).collect();
            self.answer(pin!(self.client.execute(&prepared, &params))).await
        } else {
            let typed: Vec<(&(dyn ToSql + Sync), Type)> =
                params.iter().map(|value| (value as _, value.pg_type())).collect();
            self.answer(pin!(self.client.execute_typed(text, &typed))).await
        };
        changed.map_err(|failed| self.failed(failed))
    }

    pub(crate) async fn each(
        &mut self,
        statement: Statement,
        fixed: &[Value],
        columns: &[Column],
        len: usize,
    ) -> Result<Vec<Row>> {
        let wants_ordinals = self.texts.params(statement) > fixed.len() + columns.len();
        let ordinals = wants_ordinals.then(|| Column::ordinals(len));
        let columns = || columns.iter().chain(&ordinals);
        let types: Vec<_> = fixed.iter().map(Value::pg_type).chain(columns().map(Column::pg_type)).collect();
        let params: Vec<&(dyn ToSql + Sync)> =
            fixed.iter().map(|value| value as _).chain(columns().map(|column| column as _)).collect();
        self.run(self.texts.text(statement), &params, &types).await
    }

    pub(crate) async fn act(&mut self, statement: Statement, fixed: &[Value], lists: &[List]) -> Result<Vec<Row>> {
        let columns = || lists.iter().flatten();
        let all: Vec<(&(dyn ToSql + Sync), Type)> = fixed
            .iter()
            .map(|value| (value as _, value.pg_type()))
            .chain(columns().map(|column| (column as _, column.pg_type())))
            .collect();
        let wanted = |number: usize| match fixed.get(number - 1) {
            Some(value) => matches!(value, Value::Bool(true) | Value::Int(1..)),
            None => columns().nth(number - 1 - fixed.len()).is_some_and(|column| column.len() > 0),
        };
        let variant = self.texts.0[statement.index].variant(wanted);
        let (params, types): (Vec<_>, Vec<_>) = variant.params.iter().map(|number| all[number - 1].clone()).unzip();
        self.run(&variant.text, &params, &types).await
    }
}

/// The error of a statement that cannot have changed anything.
fn error_of(failed: impl Into<Failed>) -> Error {
    let error = match failed.into() {
        Failed::Silent(limit) => return silent(limit),
        Failed::Said(error) => error,
    };
    if let Some(db) = error.as_db_error() {
        return Error::of_postgres(db.code().code(), db.message()).with_source(error);
    }
    if error.is_closed() || source_of::<std::io::Error>(&error).is_some() {
        return Error::new(Kind::Unavailable, "the connection to PostgreSQL was lost").with_source(error);
    }
    Error::new(Kind::Database, format!("PostgreSQL: {error}")).with_source(error)
}

/// The same for a statement that commits: without an answer, it may have been carried out.
fn error_of_write(failed: Failed) -> Error {
    let refused = matches!(&failed, Failed::Said(error) if error.as_db_error().is_some());
    let error = error_of(failed);
    if !refused && error.kind() == Kind::Unavailable { error.ambiguous() } else { error }
}

fn source_of<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = error.source();
    while let Some(source) = next {
        if let Some(found) = source.downcast_ref::<E>() {
            return Some(found);
        }
        next = source.source();
    }
    None
}
