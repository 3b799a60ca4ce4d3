//! The PostgreSQL adapter: a pool of prepared connections, TLS, and a connection of its own for LISTEN.
//!
//! Invariants: every connection has a statement time-out; plans are pinned to indexes by session settings, because a
//! plan made while a queue was empty otherwise scans the table once it is full (measured: the same design swings
//! between 2.7k/s and 9.5k/s); behind PgBouncer in transaction mode nothing is prepared and nothing is set, and each
//! statement is planned with its real parameters instead.

mod tls;
pub(crate) mod wire;

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime};
use tokio::sync::mpsc;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{Act, Conn, List};
use crate::dsn::PostgresDsn;
use crate::error::{Error, Kind, Result, kind_of_sqlstate};
use crate::sql::{Statement, conditions, highest_parameter, rendered, without};
use crate::value::{Column, Row, Value};
use crate::wake::{channel, payload};

/// Keeps every plan on its index, whatever the statistics say about a table that was empty a second ago, and keeps it at
/// all: planning an enqueue anew each time, which PostgreSQL does when it believes in better plans, halved the lone
/// caller's rate.
const PINNED: &str = "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off -c enable_hashjoin=off \
                      -c enable_mergejoin=off -c jit=off -c plan_cache_mode=force_generic_plan";

/// A connected PostgreSQL database.
pub(crate) struct Postgres {
    pool: Pool,
    /// Where to LISTEN: none behind a pooler that hides the server.
    listen: Option<Config>,
    tls: MakeRustlsConnect,
    texts: Texts,
    prepared: bool,
    pub(crate) schema: String,
    address: String,
}

impl Postgres {
    /// Connects once to see that it works, so that a wrong DSN fails here and now.
    pub(crate) async fn connect(dsn: &PostgresDsn) -> Result<Self> {
        let tls = MakeRustlsConnect::new(tls::config(dsn.verify)?);
        let mut config = dsn.config.clone();
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(4));
        }
        if config.get_application_name().is_none() {
            config.application_name("tenure");
        }
        let listen = listening(&config, dsn);
        if !dsn.pgbouncer {
            let timeout = dsn.statement_timeout.as_millis();
            let own = config.get_options().unwrap_or_default().to_owned();
            config.options(format!("{PINNED} -c statement_timeout={timeout} {own}"));
        }
        let manager =
            Manager::from_config(config, tls.clone(), ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let pool = Pool::builder(manager)
            .max_size(dsn.pool)
            .runtime(Runtime::Tokio1)
            // The connection used last is the one whose server process is warm.
            .queue_mode(deadpool::managed::QueueMode::Lifo)
            .wait_timeout(Some(Duration::from_secs(30)))
            .create_timeout(Some(Duration::from_secs(5)))
            .build()
            .map_err(|error| Error::new(Kind::Database, "cannot build a connection pool").with_source(error))?;
        let postgres = Postgres {
            pool,
            listen,
            tls,
            texts: Texts::new(&dsn.schema),
            prepared: !dsn.pgbouncer,
            schema: dsn.schema.clone(),
            address: dsn.address.clone(),
        };
        drop(postgres.client().await?);
        Ok(postgres)
    }

    /// Connections that are open, and those of them that nobody uses.
    pub(crate) fn connections(&self) -> (usize, usize) {
        let status = self.pool.status();
        (status.size, status.available)
    }

    async fn client(&self) -> Result<Object> {
        self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => self.refused(error),
            PoolError::Timeout(_) => Error::new(
                Kind::Unavailable,
                format!("no connection to PostgreSQL at {} became free in time: raise `pool_size`", self.address),
            )
            .with_source(error),
            error => Error::new(Kind::Unavailable, format!("no connection to PostgreSQL at {}", self.address))
                .with_source(error),
        })
    }

    /// Why a connection could not be made, in words: the driver's own text only says "error connecting to server".
    fn refused(&self, error: tokio_postgres::Error) -> Error {
        if let Some(db) = error.as_db_error() {
            let kind = kind_of_sqlstate(db.code().code());
            let advice = match kind {
                Kind::AccessDenied => ": check user and password in the DSN",
                Kind::DatabaseMissing => ": create it first, or correct the DSN",
                _ => "",
            };
            let message = format!("PostgreSQL at {} refused the connection: {}{advice}", self.address, db.message());
            return Error::new(kind, message).with_source(error);
        }
        let io = source_of::<std::io::Error>(&error).map(|io| match io.kind() {
            std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
            _ => io.to_string(),
        });
        let reason = io.unwrap_or_else(|| match error.source() {
            Some(source) => source.to_string(),
            None => error.to_string(),
        });
        let message = format!("cannot connect to PostgreSQL at {}: {reason}. Is it running there?", self.address);
        Error::new(Kind::Unavailable, message).with_source(error)
    }

    fn conn<'a>(&'a self, client: &'a Object) -> PgConn<'a> {
        PgConn { client, prepared: self.prepared.then_some(client), texts: &self.texts }
    }

    /// Over a connection that is not ours: nothing is prepared on it, so that it stays as it was.
    pub(crate) fn borrowed<'a>(&'a self, client: &'a Client) -> PgConn<'a> {
        PgConn { client, prepared: None, texts: &self.texts }
    }

    /// Says in a transaction what will be ready when it commits. The sender 0 is nobody: this process listens too.
    pub(crate) async fn notify_in(&self, client: &Client, ready: &HashMap<i64, i64>) -> Result<()> {
        let channel = channel(&self.schema);
        for payload in payload(0, ready) {
            let params: [(&(dyn ToSql + Sync), Type); 2] = [(&channel, Type::TEXT), (&payload, Type::TEXT)];
            client.query_typed("select pg_notify($1, $2)", &params).await.map_err(error_of)?;
        }
        Ok(())
    }

    pub(crate) async fn run<T>(&self, act: impl Act<T>) -> Result<T> {
        let client = self.client().await?;
        let mut conn = Conn::Postgres(self.conn(&client));
        act(&mut conn).await
    }

    pub(crate) async fn transact<T>(&self, act: impl Act<T>) -> Result<T> {
        let client = self.client().await?;
        let mut open = Open { client: Some(client) };
        let client = open.client.as_ref().expect("an open transaction has its connection");
        client.batch_execute("begin").await.map_err(error_of)?;
        let result = act(&mut Conn::Postgres(self.conn(client))).await;
        match result {
            Ok(value) => {
                client.batch_execute("commit").await.map_err(|error| error_of(error).ambiguous())?;
                open.client = None;
                Ok(value)
            }
            Err(error) => {
                if client.batch_execute("rollback").await.is_ok() {
                    open.client = None;
                }
                Err(error)
            }
        }
    }

    pub(crate) async fn script(&self, text: String) -> Result<()> {
        self.client().await?.batch_execute(&text).await.map_err(error_of)
    }

    pub(crate) async fn inspect(&self, text: String) -> Result<Vec<Row>> {
        let rows = self.client().await?.query(&text, &[]).await.map_err(error_of)?;
        Ok(rows.into_iter().map(Row::Postgres).collect())
    }

    /// Parameter count and column names of a statement, for the statement test.
    #[cfg(feature = "conformance")]
    pub(crate) async fn describe(&self, index: usize) -> Result<(usize, Vec<String>)> {
        let client = self.client().await?;
        let statement = client.prepare(&self.texts.0[index].whole.text).await.map_err(error_of)?;
        Ok((statement.params().len(), statement.columns().iter().map(|c| c.name().to_owned()).collect()))
    }

    /// Sends one NOTIFY outside of any write transaction, without waiting for the disk.
    pub(crate) async fn notify(&self, channel: &str, payload: &str) -> Result<()> {
        let client = self.client().await?;
        let params: [(&(dyn ToSql + Sync), Type); 2] = [(&channel, Type::TEXT), (&payload, Type::TEXT)];
        client
            .query_typed("select set_config('synchronous_commit', 'off', true), pg_notify($1, $2)", &params)
            .await
            .map_err(error_of)?;
        Ok(())
    }

    /// How many processes listen on this channel: each has one connection that is named after it.
    pub(crate) async fn listeners(&self, channel: &str) -> Result<i64> {
        let client = self.client().await?;
        let text = "select count(*) from pg_stat_activity where application_name = $1 and datname = current_database()";
        let rows = client.query_typed(text, &[(&channel, Type::TEXT)]).await.map_err(error_of)?;
        rows[0].try_get(0).map_err(error_of)
    }

    /// A connection of its own that listens.
    pub(crate) async fn listen(&self, channel: &str) -> Result<Listener> {
        let Some(mut config) = self.listen.clone() else {
            let message = "behind a pooler nothing can be heard: name the server itself with direct=host:port";
            return Err(Error::new(Kind::Unsupported, message));
        };
        config.application_name(channel);
        let (client, mut connection) = config.connect(self.tls.clone()).await.map_err(|error| self.refused(error))?;
        let (sender, notes) = mpsc::channel(1024);
        tokio::spawn(async move {
            while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notification(note) = message
                    && sender.send(note.payload().to_owned()).await.is_err()
                {
                    return;
                }
            }
        });
        let listen = format!("listen {}", crate::sql::quoted(channel));
        client.batch_execute(&listen).await.map_err(error_of)?;
        Ok(Listener { notes, _client: client })
    }
}

/// The configuration of the listening connection: the same, or past the pooler.
fn listening(config: &Config, dsn: &PostgresDsn) -> Option<Config> {
    let Some((host, port)) = &dsn.direct else { return (!dsn.pgbouncer).then(|| config.clone()) };
    let mut direct = Config::new();
    direct.host(host).port(*port).ssl_mode(config.get_ssl_mode());
    if let Some(user) = config.get_user() {
        direct.user(user);
    }
    if let Some(password) = config.get_password() {
        direct.password(password);
    }
    if let Some(database) = config.get_dbname() {
        direct.dbname(database);
    }
    Some(direct)
}

/// Yields the payload of every NOTIFY, and ends when the connection does.
pub(crate) struct Listener {
    pub(crate) notes: mpsc::Receiver<String>,
    /// Dropping the client would close the connection.
    _client: tokio_postgres::Client,
}

/// A transaction that was neither committed nor rolled back must not go back into the pool: when the act's future is
/// dropped half-way, its connection is closed and the server rolls back.
struct Open {
    client: Option<Object>,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            drop(Object::take(client));
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
    /// The same with its cache of prepared statements, where there may be one.
    prepared: Option<&'a Object>,
    texts: &'a Texts,
}

impl PgConn<'_> {
    async fn run(&self, text: &str, params: &[&(dyn ToSql + Sync)], types: &[Type]) -> Result<Vec<Row>> {
        let rows = if let Some(client) = self.prepared {
            let prepared = client.prepare_cached(text).await.map_err(error_of)?;
            self.client.query(&prepared, params).await
        } else {
            let typed: Vec<_> = params.iter().copied().zip(types.iter().cloned()).collect();
            self.client.query_typed(text, &typed).await
        };
        Ok(rows.map_err(error_of_write)?.into_iter().map(Row::Postgres).collect())
    }

    pub(crate) async fn query(&mut self, statement: Statement, params: &[Value]) -> Result<Vec<Row>> {
        let types: Vec<_> = params.iter().map(Value::pg_type).collect();
        let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|value| value as _).collect();
        self.run(self.texts.text(statement), &params, &types).await
    }

    pub(crate) async fn execute(&mut self, statement: Statement, params: &[Value]) -> Result<u64> {
        let text = self.texts.text(statement);
        if let Some(client) = self.prepared {
            let prepared = client.prepare_cached(text).await.map_err(error_of)?;
            let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|value| value as _).collect();
            return self.client.execute(&prepared, &params).await.map_err(error_of_write);
        }
        let typed: Vec<(&(dyn ToSql + Sync), Type)> =
            params.iter().map(|value| (value as _, value.pg_type())).collect();
        self.client.execute_typed(text, &typed).await.map_err(error_of_write)
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

/// What the server, or the connection to it, said; for a statement that cannot have changed anything.
fn error_of(error: tokio_postgres::Error) -> Error {
    if let Some(db) = error.as_db_error() {
        let kind = kind_of_sqlstate(db.code().code());
        let message = match kind {
            Kind::Schema => format!("Tenure's tables are missing or old: call `install` first ({})", db.message()),
            _ => format!("PostgreSQL refused: {} (SQLSTATE {})", db.message(), db.code().code()),
        };
        return Error::new(kind, message).with_source(error);
    }
    if error.is_closed() || source_of::<std::io::Error>(&error).is_some() {
        return Error::new(Kind::Unavailable, "the connection to PostgreSQL was lost").with_source(error);
    }
    Error::new(Kind::Database, format!("PostgreSQL: {error}")).with_source(error)
}

/// The same for a statement that is its own transaction: when the connection breaks, it may have been committed.
fn error_of_write(error: tokio_postgres::Error) -> Error {
    let sent = error.as_db_error().is_none();
    let error = error_of(error);
    if sent && error.kind() == Kind::Unavailable { error.ambiguous() } else { error }
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
