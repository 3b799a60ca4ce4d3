//! Makes connections: tries the hosts one after the other, each within its own time limit.
//!
//! Invariants: a host has `connect_timeout` for everything up to a usable session, because a frozen server still accepts
//! TCP connections and then says nothing (the driver's own limit ends with the TCP connection); the host that worked last
//! is tried first; the server ends a session of ours that stopped in the middle of a transaction or of an answer.

use std::error::Error as StdError;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};
use deadpool_postgres::ClientWrapper;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::source_of;
use crate::dsn::{PostgresDsn, Server};
use crate::error::{Error, Kind, Result, kind_of_sqlstate};

/// Keeps every plan on its index, whatever the statistics say about a table that was empty a second ago, and keeps it at
/// all: planning an enqueue anew each time, which PostgreSQL does when it believes in better plans, halved the lone
/// caller's rate.
const PINNED: &str = "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off -c enable_hashjoin=off \
                      -c enable_mergejoin=off -c jit=off -c plan_cache_mode=force_generic_plan";

/// How long a transaction of ours may do nothing. The rows it has locked are skipped by claims, so a process that stops
/// here (SIGSTOP, a paused virtual machine) hides them: 39 s were measured without this limit.
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(5);

/// How often a server that waits for a lock looks whether its client is still there. PostgreSQL 14 and later, on Linux.
const CHECK_CLIENT: &str = "set client_connection_check_interval = '2s'";

/// Makes the connections of a pool, or the one that listens.
pub(super) struct Connector {
    servers: Vec<Server>,
    /// The server that accepted the last connection.
    last: AtomicUsize,
    config: Config,
    tls: MakeRustlsConnect,
    limit: Duration,
    /// Whether the sessions are PostgreSQL's own and not a pooler's.
    own_session: bool,
}

type Connected = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

impl Connector {
    /// For connections that run statements.
    pub(super) fn pooled(dsn: &PostgresDsn, tls: MakeRustlsConnect) -> Self {
        let mut config = dsn.config.clone();
        if !dsn.pgbouncer {
            let options = format!(
                "{PINNED} {} -c statement_timeout={} -c idle_in_transaction_session_timeout={} {}",
                network(&config),
                dsn.statement_timeout.as_millis(),
                IDLE_IN_TRANSACTION.as_millis(),
                config.get_options().unwrap_or_default(),
            );
            config.options(options);
        }
        Connector::new(dsn.hosts.clone(), config, tls, !dsn.pgbouncer)
    }

    /// For the connection that listens: the same servers, or past the pooler; none when a pooler hides the server.
    pub(super) fn listening(dsn: &PostgresDsn, channel: &str, tls: MakeRustlsConnect) -> Option<Self> {
        let servers = match &dsn.direct {
            Some(server) => vec![server.clone()],
            None if dsn.pgbouncer => return None,
            None => dsn.hosts.clone(),
        };
        let mut config = dsn.config.clone();
        let own = config.get_options().unwrap_or_default();
        // The name by which other processes count the listeners of a channel.
        config.options(format!("{} {own}", network(&config))).application_name(listener_name(channel));
        Some(Connector::new(servers, config, tls, true))
    }

    fn new(servers: Vec<Server>, config: Config, tls: MakeRustlsConnect, own_session: bool) -> Self {
        let limit = config.get_connect_timeout().copied().expect("every DSN has a connect_timeout");
        Connector { servers, last: AtomicUsize::new(0), config, tls, limit, own_session }
    }

    /// The time limit for a host, which is also a fair one for the smallest statement.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// All servers, for error messages.
    pub(super) fn address(&self) -> String {
        self.servers.iter().map(Server::to_string).collect::<Vec<_>>().join(",")
    }

    /// Connects to the first server that takes us. Notifications go to `notes`.
    pub(super) async fn connect(&self, notes: Option<mpsc::Sender<String>>) -> Result<ClientWrapper> {
        let first = self.last.load(Ordering::Relaxed);
        let mut errors = Vec::new();
        for n in 0..self.servers.len() {
            let n = (first + n) % self.servers.len();
            match self.connect_to(&self.servers[n], notes.clone()).await {
                Ok(client) => {
                    self.last.store(n, Ordering::Relaxed);
                    return Ok(client);
                }
                Err(error) => errors.push(error),
            }
        }
        Err(merged(errors))
    }

    async fn connect_to(&self, server: &Server, notes: Option<mpsc::Sender<String>>) -> Result<ClientWrapper> {
        let mut config = self.config.clone();
        config.port(server.port);
        let addresses = match &server.host {
            #[cfg(unix)]
            Host::Unix(path) => {
                config.host_path(path);
                vec![None]
            }
            Host::Tcp(host) => {
                config.host(host);
                self.resolve(server, host).await?.into_iter().map(Some).collect()
            }
        };
        let mut errors = Vec::new();
        for address in addresses {
            let mut config = config.clone();
            if let Some(address) = address {
                config.hostaddr(address);
            }
            let session = self.session(server, &config, notes.clone());
            match tokio::time::timeout(self.limit, session).await.unwrap_or_else(|_| Err(self.silent(server))) {
                Ok(client) => return Ok(client),
                Err(error) => errors.push(error),
            }
        }
        Err(merged(errors))
    }

    /// The addresses of a host: each of them gets the whole time limit, as with libpq.
    async fn resolve(&self, server: &Server, host: &str) -> Result<Vec<IpAddr>> {
        let found = tokio::time::timeout(self.limit, tokio::net::lookup_host((host, server.port))).await;
        let found = found.map_err(|_| self.silent(server))?;
        let addresses: Vec<IpAddr> = found.map_err(|error| refused(server, &error))?.map(|found| found.ip()).collect();
        if addresses.is_empty() {
            return Err(refused(server, &std::io::Error::other("the name has no address")));
        }
        Ok(addresses)
    }

    async fn session(
        &self,
        server: &Server,
        config: &Config,
        notes: Option<mpsc::Sender<String>>,
    ) -> Result<ClientWrapper> {
        let (client, connection) = match config.connect(self.tls.clone()).await {
            Ok(connected) => connected,
            Err(error) => return Err(rejected(server, error)),
        };
        let checks_clients = self.own_session && major_version(&connection).is_some_and(|version| version >= 14);
        let client = ClientWrapper::new(client, drive(connection, notes));
        if checks_clients {
            check_client(&client, server).await?;
        }
        Ok(client)
    }

    fn silent(&self, server: &Server) -> Error {
        let limit = self.limit;
        refused(server, &std::io::Error::other(format!("it did not answer within {limit:?} (connect_timeout)")))
    }
}

/// The limits of the network, for the server's end of the connection. The server then also gives up an answer that a
/// frozen client does not read; its statement_timeout does not apply while it sends.
fn network(config: &Config) -> String {
    let mut options = String::new();
    if let Some(limit) = config.get_tcp_user_timeout() {
        options.push_str(&format!("-c tcp_user_timeout={}", limit.as_millis()));
    }
    if config.get_keepalives() {
        options.push_str(&format!(" -c tcp_keepalives_idle={}", config.get_keepalives_idle().as_secs()));
        if let Some(interval) = config.get_keepalives_interval() {
            options.push_str(&format!(" -c tcp_keepalives_interval={}", interval.as_secs()));
        }
        if let Some(count) = config.get_keepalives_retries() {
            options.push_str(&format!(" -c tcp_keepalives_count={count}"));
        }
    }
    options
}

/// The application name of a connection that listens on a channel. PostgreSQL replaces every character of it that is not
/// printable ASCII, so that a channel with such letters was never found and its listeners never notified: they are
/// escaped here. Other names stay as they are, for the sake of processes of older versions that count them.
pub(super) fn listener_name(channel: &str) -> String {
    let mut name = String::new();
    for byte in channel.bytes() {
        match byte {
            b' '..=b'~' => name.push(char::from(byte)),
            other => name.push_str(&format!("%{other:02x}")),
        }
    }
    // PostgreSQL keeps 63 bytes. Channels that differ only behind them count each other's listeners, which costs a
    // NOTIFY that no process hears.
    name.truncate(63);
    name
}

fn major_version(connection: &Connected) -> Option<u32> {
    connection.parameter("server_version")?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// A server on another system than Linux refuses this setting and works without it.
async fn check_client(client: &Client, server: &Server) -> Result<()> {
    match client.batch_execute(CHECK_CLIENT).await {
        Err(error) if error.as_db_error().is_some() => {
            tracing::debug!(%server, %error, "the server cannot check whether its clients are still connected");
            Ok(())
        }
        Err(error) => Err(rejected(server, error)),
        Ok(()) => Ok(()),
    }
}

/// Runs a connection until it ends, and passes its notifications on.
fn drive(mut connection: Connected, notes: Option<mpsc::Sender<String>>) -> JoinHandle<()> {
    tokio::spawn(async move {
        while let Some(message) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            match (message, &notes) {
                (Ok(AsyncMessage::Notification(note)), Some(notes)) => {
                    if notes.send(note.payload().to_owned()).await.is_err() {
                        return;
                    }
                }
                (Ok(_), _) => {}
                (Err(error), _) => {
                    tracing::debug!(%error, "a connection to PostgreSQL ended");
                    return;
                }
            }
        }
    })
}

/// Why a server did not take us, in words: the driver's own text only says "error connecting to server".
fn rejected(server: &Server, error: tokio_postgres::Error) -> Error {
    if let Some(db) = error.as_db_error() {
        let kind = kind_of_sqlstate(db.code().code());
        let advice = match kind {
            Kind::AccessDenied => ": check user and password in the DSN",
            Kind::DatabaseMissing => ": create it first, or correct the DSN",
            _ => "",
        };
        let message = format!("PostgreSQL at {server} refused the connection: {}{advice}", db.message());
        return Error::new(kind, message).with_source(error);
    }
    match source_of::<std::io::Error>(&error) {
        Some(io) => refused(server, io),
        None => {
            let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            refused(server, &std::io::Error::other(reason))
        }
    }
}

fn refused(server: &Server, error: &std::io::Error) -> Error {
    let reason = match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => error.to_string(),
    };
    Error::new(Kind::Unavailable, format!("cannot connect to PostgreSQL at {server}: {reason}. Is it running there?"))
}

/// One error for all hosts. It is retryable if one of them may take us later.
fn merged(mut errors: Vec<Error>) -> Error {
    if errors.len() == 1 {
        return errors.remove(0);
    }
    let kind = errors.iter().map(Error::kind).find(|kind| *kind == Kind::Unavailable);
    let kind = kind.or(errors.last().map(Error::kind)).unwrap_or(Kind::Unavailable);
    let texts: Vec<String> = errors.iter().map(Error::to_string).collect();
    Error::new(kind, texts.join("; "))
}

impl Manager for Connector {
    type Type = ClientWrapper;
    type Error = Error;

    async fn create(&self) -> Result<ClientWrapper> {
        // Boxed, because most calls find a connection: every future that asks the pool would carry all of this.
        Box::pin(self.connect(None)).await
    }

    async fn recycle(&self, client: &mut ClientWrapper, _: &Metrics) -> RecycleResult<Error> {
        if client.is_closed() {
            return Err(RecycleError::message("the connection was closed"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_name_is_printable_ascii_that_fits() {
        assert_eq!(listener_name("tenure:jobs"), "tenure:jobs");
        assert_eq!(listener_name("tenure:jöbs"), "tenure:j%c3%b6bs");
        assert!(listener_name(&"é".repeat(31)).len() < 64);
    }
}
