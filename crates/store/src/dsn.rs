//! Reads connection strings. Nothing here connects, and no error repeats a password or a token.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use crate::error::{Error, Kind, Result};

/// How long a host may take until it has accepted a connection and its user.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// How long sent bytes may stay unacknowledged by the other machine. The operating system's own limit is 15 minutes.
pub(crate) const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);
/// When a silent connection is probed, how often, and after how many lost probes it is closed. The operating system
/// begins after 2 hours.
const KEEPALIVES_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVES_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVES_COUNT: u32 = 3;

/// Where a store lives, as its DSN says.
#[derive(Debug)]
pub(crate) enum Dsn {
    Postgres(Box<PostgresDsn>),
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "refused by its name alone"))]
    Sqlite(FileDsn),
    #[cfg_attr(not(feature = "turso"), allow(dead_code, reason = "refused by its name alone"))]
    Turso(FileDsn),
}

/// A PostgreSQL DSN, with our own options taken out of it.
#[derive(Debug)]
pub(crate) struct PostgresDsn {
    /// Everything but the hosts, because each host is connected to on its own, within its own time limit.
    pub(crate) config: Config,
    /// The servers, in the order in which they are tried.
    pub(crate) hosts: Vec<Server>,
    pub(crate) schema: String,
    pub(crate) pool: usize,
    pub(crate) statement_timeout: Duration,
    pub(crate) pgbouncer: bool,
    /// Where to LISTEN when the DSN leads to a pooler: past it.
    pub(crate) direct: Option<Server>,
    pub(crate) verify: Verify,
}

/// A host and a port. Its text is for error messages: never user, password or options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Tcp(host) => write!(f, "{host}:{}", self.port),
            #[cfg(unix)]
            Host::Unix(path) => write!(f, "{}:{}", path.display(), self.port),
        }
    }
}

/// How far the server's certificate is checked, with libpq's meanings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    Nothing,
    Full,
}

/// A database in a file, or in memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileDsn {
    /// None: in memory.
    pub(crate) path: Option<PathBuf>,
    pub(crate) durability: Durability,
}

/// What an acknowledged write survives on SQLite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Everything, power loss included: every commit waits for the disk.
    Full,
    /// A crash of the process, but not of the machine: the last commits may be lost with the power.
    CrashOnly,
}

/// A DSN with further options, for faces whose settings travel in it.
///
/// ```
/// let dsn = tenure_store::dsn_with("postgres://localhost/app", &[("schema", "my jobs".to_owned())]);
/// assert_eq!(dsn, "postgres://localhost/app?schema=my%20jobs");
/// ```
pub fn dsn_with(dsn: &str, options: &[(&str, String)]) -> String {
    let mut dsn = dsn.to_owned();
    for (name, value) in options {
        dsn.push(if dsn.contains('?') { '&' } else { '?' });
        dsn.push_str(&format!("{name}={}", percent(value)));
    }
    dsn
}

fn percent(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect()
}

impl FromStr for Dsn {
    type Err = Error;

    fn from_str(dsn: &str) -> Result<Self> {
        if dsn.trim().is_empty() {
            return Err(invalid("the DSN is empty: give postgres://…, sqlite:path, turso:///path or :memory:"));
        }
        match dsn.split_once(':') {
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                postgres(dsn).map(|dsn| Dsn::Postgres(Box::new(dsn)))
            }
            Some(("sqlite", rest)) => file(rest.strip_prefix("//").unwrap_or(rest)).map(Dsn::Sqlite),
            Some(("turso" | "libsql", rest)) => turso(rest).map(Dsn::Turso),
            Some((scheme, rest)) if rest.starts_with("//") => Err(Error::new(
                Kind::InvalidDsn,
                format!("'{scheme}://' is not a database Tenure knows: use postgres://, sqlite: or turso:"),
            )),
            _ => file(dsn).map(Dsn::Sqlite),
        }
    }
}

fn turso(rest: &str) -> Result<FileDsn> {
    match rest.strip_prefix("//") {
        Some(host) if !host.starts_with('/') && !host.starts_with(":memory:") => Err(Error::new(
            Kind::Unsupported,
            "this Turso DSN names a host, and Tenure runs the embedded Turso engine only: use turso:///path/to/file.db \
             or turso::memory:, or PostgreSQL for a database on another machine",
        )),
        Some(path) => file(path),
        None => file(rest),
    }
}

fn file(rest: &str) -> Result<FileDsn> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut durability = Durability::Full;
    for (name, value) in pairs(query)? {
        match (name.as_str(), value.as_str()) {
            ("durability", "full") => durability = Durability::Full,
            ("durability", "crash_only") => durability = Durability::CrashOnly,
            ("durability", _) => return Err(invalid("durability is 'full' or 'crash_only'")),
            _ => return Err(invalid(format!("unknown option '{name}': the only one here is durability"))),
        }
    }
    if path.is_empty() {
        return Err(invalid("the DSN names no file: give sqlite:path, or sqlite::memory: for a database in memory"));
    }
    let path = (path != ":memory:").then(|| PathBuf::from(decoded(path)));
    Ok(FileDsn { path, durability })
}

fn postgres(dsn: &str) -> Result<PostgresDsn> {
    let (base, query) = dsn.split_once('?').unwrap_or((dsn, ""));
    let mut schema = "tenure".to_owned();
    let mut pool = 10;
    let mut statement_timeout = Duration::from_secs(30);
    let mut pgbouncer = false;
    let mut direct = None;
    let mut ssl = SslMode::Prefer;
    let mut verify = Verify::Nothing;
    let mut theirs = Vec::new();
    for (name, value) in pairs(query)? {
        match name.as_str() {
            "schema" => schema = schema_name(value)?,
            "pool_size" => pool = number(&name, &value, 1..=1000)? as usize,
            "statement_timeout" => statement_timeout = Duration::from_secs(number(&name, &value, 1..=86_400)?),
            "pgbouncer" => pgbouncer = flag(&name, &value)?,
            "direct" => direct = Some(host_and_port(&value)?),
            "sslmode" => {
                (ssl, verify) = match value.as_str() {
                    "disable" => (SslMode::Disable, Verify::Nothing),
                    "allow" | "prefer" => (SslMode::Prefer, Verify::Nothing),
                    "require" => (SslMode::Require, Verify::Nothing),
                    "verify-ca" | "verify-full" => (SslMode::Require, Verify::Full),
                    _ => return Err(invalid("sslmode is disable, prefer, require, verify-ca or verify-full")),
                }
            }
            _ => theirs.push((name, value)),
        }
    }
    // The driver's own parser would repeat what it cannot read, password included: its text stays out of the sentence.
    let unreadable = || invalid("the DSN is not of the form postgres://user:password@host:port/database?options");
    let mut parsed = Config::from_str(base).map_err(|_| unreadable())?;
    let mut config = defaults(&parsed);
    for (name, value) in theirs {
        if name == "host" {
            parsed.host(value);
        } else {
            apply(&mut config, &name, &value)?;
        }
    }
    config.ssl_mode(ssl);
    let hosts = servers(&parsed);
    Ok(PostgresDsn { config, hosts, schema, pool, statement_timeout, pgbouncer, direct, verify })
}

/// User, password and database of the DSN, and limits for what a lost network or a frozen server leaves unanswered.
fn defaults(parsed: &Config) -> Config {
    let mut config = Config::new();
    if let Some(user) = parsed.get_user() {
        config.user(user);
    }
    if let Some(password) = parsed.get_password() {
        config.password(password);
    }
    if let Some(database) = parsed.get_dbname() {
        config.dbname(database);
    }
    config
        .application_name("tenure")
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_user_timeout(TCP_USER_TIMEOUT)
        .keepalives_idle(KEEPALIVES_IDLE)
        .keepalives_interval(KEEPALIVES_INTERVAL)
        .keepalives_retries(KEEPALIVES_COUNT);
    config
}

/// Every host with its port: the last port, or the default one, serves the hosts that name none.
fn servers(parsed: &Config) -> Vec<Server> {
    let ports = parsed.get_ports();
    let server = |(n, host): (usize, &Host)| Server {
        host: host.clone(),
        port: ports.get(n).or(ports.last()).copied().unwrap_or(5432),
    };
    let servers: Vec<Server> = parsed.get_hosts().iter().enumerate().map(server).collect();
    if servers.is_empty() { vec![Server { host: Host::Tcp("localhost".to_owned()), port: 5432 }] } else { servers }
}

/// The driver's options, by the names and in the units of libpq.
fn apply(config: &mut Config, name: &str, value: &str) -> Result<()> {
    let seconds = |range| number(name, value, range).map(Duration::from_secs);
    match name {
        "application_name" => config.application_name(value),
        "connect_timeout" => config.connect_timeout(seconds(1..=3600)?),
        "tcp_user_timeout" => config.tcp_user_timeout(milliseconds(name, value)?),
        "keepalives" => config.keepalives(flag(name, value)?),
        "keepalives_idle" => config.keepalives_idle(seconds(1..=32_767)?),
        "keepalives_interval" => config.keepalives_interval(seconds(1..=32_767)?),
        // The first is libpq's name, the second the Rust driver's.
        "keepalives_count" | "keepalives_retries" => config.keepalives_retries(number(name, value, 1..=127)? as u32),
        "options" => config.options(value),
        "user" => config.user(value),
        "password" => config.password(value),
        "dbname" => config.dbname(value),
        "target_session_attrs" => config.target_session_attrs(match value {
            "any" => tokio_postgres::config::TargetSessionAttrs::Any,
            "read-write" => tokio_postgres::config::TargetSessionAttrs::ReadWrite,
            _ => return Err(invalid("target_session_attrs is any or read-write")),
        }),
        _ => {
            return Err(invalid(format!(
                "unknown option '{name}': known are schema, pool_size, statement_timeout, pgbouncer, direct, sslmode, \
                 application_name, connect_timeout, tcp_user_timeout, keepalives, keepalives_idle, keepalives_interval, \
                 keepalives_count, options, user, password, dbname, host, target_session_attrs"
            )));
        }
    };
    Ok(())
}

/// At least a second, because a smaller number is most likely one of seconds.
fn milliseconds(name: &str, value: &str) -> Result<Duration> {
    let number = number(name, value, 1000..=3_600_000);
    number.map(Duration::from_millis).map_err(|error| invalid(format!("{error}: milliseconds")))
}

fn schema_name(name: String) -> Result<String> {
    if name.is_empty() || name.len() > 63 || name.contains('\0') || name.starts_with("pg_") {
        return Err(invalid("schema must be 1 to 63 bytes and not begin with 'pg_'"));
    }
    Ok(name)
}

fn host_and_port(value: &str) -> Result<Server> {
    let parsed = value
        .rsplit_once(':')
        .and_then(|(host, port)| Some(Server { host: Host::Tcp(host.to_owned()), port: port.parse().ok()? }));
    parsed.ok_or_else(|| invalid("direct is the server behind the pooler, as host:port"))
}

fn number(name: &str, value: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64> {
    match value.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(invalid(format!("{name} is a whole number from {} to {}", range.start(), range.end()))),
    }
}

fn flag(name: &str, value: &str) -> Result<bool> {
    match value {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err(invalid(format!("{name} is true or false"))),
    }
}

fn pairs(query: &str) -> Result<Vec<(String, String)>> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| match pair.split_once('=') {
            Some((name, value)) => Ok((decoded(name), decoded(value))),
            None => Err(invalid(format!("the option '{}' has no value: write name=value", decoded(pair)))),
        })
        .collect()
}

/// Percent-decoding; what is not a valid escape stays as it is.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escape = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match escape.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(Kind::InvalidDsn, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(dsn: &str) -> Option<String> {
        match dsn.parse().unwrap() {
            Dsn::Sqlite(file) | Dsn::Turso(file) => file.path.map(|path| path.display().to_string()),
            Dsn::Postgres(_) => panic!("{dsn} is not a file"),
        }
    }

    #[test]
    fn every_spelling_of_a_file_leads_to_it() {
        for dsn in ["jobs.db", "sqlite:jobs.db", "sqlite://jobs.db"] {
            assert_eq!(path(dsn).as_deref(), Some("jobs.db"), "{dsn}");
        }
        for dsn in ["/var/jobs.db", "sqlite:/var/jobs.db", "sqlite:///var/jobs.db", "turso:///var/jobs.db"] {
            assert_eq!(path(dsn).as_deref(), Some("/var/jobs.db"), "{dsn}");
        }
        for dsn in [":memory:", "sqlite::memory:", "sqlite://:memory:", "turso::memory:", "turso://:memory:"] {
            assert_eq!(path(dsn), None, "{dsn}");
        }
        assert_eq!(path("sqlite:my%20jobs.db").as_deref(), Some("my jobs.db"));
    }

    #[test]
    fn a_turso_host_is_refused_and_never_taken_for_a_file() {
        for dsn in ["turso://my-db.turso.io?auth_token=secret", "libsql://my-db.turso.io"] {
            let error = dsn.parse::<Dsn>().unwrap_err();
            assert_eq!(error.kind(), Kind::Unsupported);
            assert!(error.to_string().contains("names a host"), "{error}");
            assert!(!format!("{error:?}").contains("secret"));
        }
    }

    #[test]
    fn wrong_dsns_say_what_to_write_instead_and_keep_secrets() {
        for (dsn, part) in [
            ("", "empty"),
            ("mysql://root:secret@db", "'mysql://' is not a database"),
            ("sqlite:", "names no file"),
            ("sqlite:x.db?mode=rwc", "unknown option 'mode'"),
            ("postgres://u:secret@h/db?schemas=x", "unknown option 'schemas'"),
            ("postgres://u:secret@h/db?pool_size=0", "from 1 to 1000"),
            ("postgres://u:secret@h:port/db", "not of the form"),
            ("postgres://u:secret@h/db?schema=pg_x", "schema must be"),
            ("postgres://u:secret@h/db?tcp_user_timeout=30", "from 1000 to 3600000: milliseconds"),
            ("postgres://u:secret@h/db?connect_timeout=0", "connect_timeout is a whole number from 1 to 3600"),
            ("postgres://u:secret@h/db?keepalives=maybe", "keepalives is true or false"),
            ("postgres://u:secret@h/db?keepalives_idle=never", "keepalives_idle is a whole number"),
            ("postgres://u:secret@h/db?keepalives_count=1000", "from 1 to 127"),
        ] {
            let error = dsn.parse::<Dsn>().unwrap_err();
            assert!(error.to_string().contains(part), "{dsn}: {error}");
            assert!(!format!("{error:?}").contains("secret"), "{dsn}");
        }
    }

    #[test]
    fn a_postgres_dsn_gives_up_our_options_and_keeps_its_own() {
        let Dsn::Postgres(dsn) =
            "postgresql://me:pw@db:6432/app?schema=my%20jobs&pool_size=3&pgbouncer=true&direct=db:5432&sslmode=verify-full"
                .parse()
                .unwrap()
        else {
            panic!("not PostgreSQL")
        };
        assert_eq!((dsn.schema.as_str(), dsn.pool), ("my jobs", 3));
        assert_eq!(texts(&dsn.hosts), ["db:6432"]);
        assert!(dsn.pgbouncer && dsn.verify == Verify::Full);
        assert_eq!((dsn.config.get_dbname(), dsn.config.get_user()), (Some("app"), Some("me")));
        assert_eq!(dsn.direct.unwrap().to_string(), "db:5432");
    }

    fn postgres_dsn(dsn: &str) -> PostgresDsn {
        match dsn.parse().unwrap() {
            Dsn::Postgres(dsn) => *dsn,
            _ => panic!("{dsn} is not PostgreSQL"),
        }
    }

    fn texts(servers: &[Server]) -> Vec<String> {
        servers.iter().map(Server::to_string).collect()
    }

    #[test]
    fn every_host_keeps_its_own_port() {
        assert_eq!(texts(&postgres_dsn("postgres://u@a:1,b:2,c/db").hosts), ["a:1", "b:2", "c:5432"]);
        assert_eq!(texts(&postgres_dsn("postgres://u@[::1]:7/db").hosts), ["::1:7"]);
        assert_eq!(texts(&postgres_dsn("postgres:///db?host=a").hosts), ["a:5432"]);
        assert_eq!(texts(&postgres_dsn("postgres:///db").hosts), ["localhost:5432"]);
    }

    #[test]
    fn network_limits_have_defaults_and_are_read_from_the_dsn() {
        let read = |dsn| {
            let config = postgres_dsn(dsn).config;
            let times = (config.get_connect_timeout().copied(), config.get_tcp_user_timeout().copied());
            let idle = config.get_keepalives_idle();
            (times, config.get_keepalives(), idle, config.get_keepalives_interval(), config.get_keepalives_retries())
        };
        let seconds = Duration::from_secs;
        let defaults = ((Some(seconds(4)), Some(seconds(10))), true, seconds(10), Some(seconds(5)), Some(3));
        assert_eq!(read("postgres://h/db"), defaults);
        let given = "postgres://h/db?connect_timeout=7&tcp_user_timeout=20000&keepalives=0&keepalives_idle=60\
                     &keepalives_interval=2&keepalives_count=9";
        let expected = ((Some(seconds(7)), Some(seconds(20))), false, seconds(60), Some(seconds(2)), Some(9));
        assert_eq!(read(given), expected);
        assert_eq!(read("postgres://h/db?keepalives_retries=4").4, Some(4));
    }
}
