//! Reads connection strings. Nothing here connects, and no error repeats a password or a token.

mod libpq;
mod shown;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host, SslMode};

use crate::error::{Error, Kind, Result};
use crate::store::Backend;

pub use self::shown::config_error_shown;

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
/// use tenure_store::dsn_with;
/// let schema = [("schema", "my jobs".to_owned())];
/// assert_eq!(dsn_with("postgres://localhost/app", &schema), "postgres://localhost/app?schema=my%20jobs");
/// assert_eq!(dsn_with("host=localhost dbname=app", &schema), "host=localhost dbname=app schema='my jobs'");
/// ```
pub fn dsn_with(dsn: &str, options: &[(&str, String)]) -> String {
    let mut text = dsn.to_owned();
    let mut separator = match form(dsn) {
        Ok(Form::KeyValue) => ' ',
        // A `?` in a password does not begin the options, and an `@` in an option does not end a password.
        Ok(Form::Uri(rest)) if !libpq::has_options(rest) => '?',
        _ if !dsn.contains('?') => '?',
        _ => '&',
    };
    for (name, value) in options {
        let value = if separator == ' ' { libpq::quoted(value) } else { percent(value) };
        text.push_str(&format!("{separator}{name}={value}"));
        separator = if separator == ' ' { ' ' } else { '&' };
    }
    text
}

/// The database that a DSN names. Nothing is opened, and no error repeats a part of the DSN that may be secret.
///
/// ```
/// use tenure_store::{Backend, dsn_backend};
/// assert_eq!(dsn_backend("host=localhost dbname=app")?, Backend::Postgres);
/// assert_eq!(dsn_backend("./jobs.db")?, Backend::Sqlite);
/// assert!(dsn_backend("me:secret@db/app").is_err());
/// # Ok::<(), tenure_store::Error>(())
/// ```
///
/// # Errors
/// `InvalidDsn` or `Unsupported`, with a sentence that says what to write instead.
pub fn dsn_backend(dsn: &str) -> Result<Backend> {
    Ok(match dsn.parse()? {
        Dsn::Postgres(_) => Backend::Postgres,
        Dsn::Sqlite(_) => Backend::Sqlite,
        Dsn::Turso(_) => Backend::Turso,
    })
}

/// The file that a DSN names; none for a database in memory or on a server, and for a DSN that cannot be read.
///
/// ```
/// use tenure_store::dsn_file;
/// assert_eq!(dsn_file("sqlite:jobs.db?durability=full").unwrap().to_str(), Some("jobs.db"));
/// assert_eq!(dsn_file("postgres://localhost/app"), None);
/// ```
pub fn dsn_file(dsn: &str) -> Option<PathBuf> {
    match dsn.parse() {
        Ok(Dsn::Sqlite(file) | Dsn::Turso(file)) => file.path,
        _ => None,
    }
}

/// A DSN for logs and errors: without its options, and with `***` for its password.
///
/// ```
/// use tenure_store::dsn_shown;
/// assert_eq!(dsn_shown("postgres://me:secret@db/app?pool_size=3"), "postgres://me:***@db:5432/app");
/// assert_eq!(dsn_shown("sqlite:jobs.db"), "sqlite:jobs.db");
/// assert_eq!(dsn_shown("me:secret@db/app"), "(a DSN that cannot be read)");
/// ```
pub fn dsn_shown(dsn: &str) -> String {
    let file = |scheme: &str, file: FileDsn| match file.path {
        Some(path) => format!("{scheme}:{}", path.display()),
        None => ":memory:".to_owned(),
    };
    match dsn.parse() {
        Ok(Dsn::Sqlite(dsn)) => file("sqlite", dsn),
        Ok(Dsn::Turso(dsn)) => file("turso", dsn),
        Ok(Dsn::Postgres(dsn)) => {
            let user = dsn.config.get_user().map(str::to_owned).unwrap_or_default();
            let password = if dsn.config.get_password().is_some() { ":***" } else { "" };
            let at = if user.is_empty() && password.is_empty() { "" } else { "@" };
            let hosts = dsn.hosts.iter().map(Server::to_string).collect::<Vec<_>>().join(",");
            let database = dsn.config.get_dbname().map(|name| format!("/{name}")).unwrap_or_default();
            format!("postgres://{user}{password}{at}{hosts}{database}")
        }
        Err(_) => "(a DSN that cannot be read)".to_owned(),
    }
}

fn percent(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect()
}

/// The spellings of a DSN, with what follows the scheme.
enum Form<'a> {
    Uri(&'a str),
    KeyValue,
    Sqlite(&'a str),
    Turso(&'a str),
}

impl FromStr for Dsn {
    type Err = Error;

    fn from_str(dsn: &str) -> Result<Self> {
        Ok(match form(dsn)? {
            Form::Uri(rest) => Dsn::Postgres(Box::new(postgres(libpq::uri(rest)?)?)),
            Form::KeyValue => Dsn::Postgres(Box::new(postgres(libpq::key_value(dsn)?)?)),
            Form::Sqlite(rest) => Dsn::Sqlite(file(rest.strip_prefix("//").unwrap_or(rest))?),
            Form::Turso(rest) => Dsn::Turso(turso(rest)?),
        })
    }
}

/// Which spelling a DSN has. Only what looks like a path is one: a mistyped DSN of a server must neither become the name of
/// a file nor be shown in an error about that file.
fn form(dsn: &str) -> Result<Form<'_>> {
    if dsn.trim().is_empty() {
        return Err(invalid("the DSN is empty: give postgres://…, sqlite:path, turso:///path or :memory:"));
    }
    if let Some((scheme, rest)) = scheme(dsn) {
        return match scheme.to_ascii_lowercase().as_str() {
            "postgres" | "postgresql" => match rest.strip_prefix("//") {
                Some(rest) => Ok(Form::Uri(rest)),
                None => Err(invalid(
                    "a DSN of PostgreSQL has two slashes after its scheme: postgres://user:password@host:port/database",
                )),
            },
            "sqlite" if names_a_user(rest.strip_prefix("//").unwrap_or(rest)) => Err(a_user_of_a_file(scheme)),
            "sqlite" => Ok(Form::Sqlite(rest)),
            "turso" | "libsql" if names_a_user(rest) => Err(a_user_of_a_file(scheme)),
            "turso" | "libsql" => Ok(Form::Turso(rest)),
            known if rest.starts_with("//") && !rest.is_empty() => Err(Error::new(
                Kind::InvalidDsn,
                format!("'{known}://' is not a database Tenure knows: use postgres://, sqlite: or turso:"),
            )),
            _ => Err(not_a_path()),
        };
    }
    let path = dsn.split('?').next().unwrap_or_default();
    if path == ":memory:" || looks_like_a_path(path) {
        return Ok(Form::Sqlite(dsn));
    }
    if libpq::is_key_value(dsn) {
        let name = dsn.split('=').next().unwrap_or_default().trim();
        return if libpq::is_option(name) { Ok(Form::KeyValue) } else { Err(not_a_path()) };
    }
    if path.contains(['@', '=', ':']) || path.starts_with("//") {
        return Err(not_a_path());
    }
    Ok(Form::Sqlite(dsn))
}

/// A scheme is a letter, and letters, digits, `+`, `-` and `.` up to the colon. The drive of a Windows path is none.
fn scheme(dsn: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = dsn.split_once(':')?;
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.bytes().all(letters);
    let is_drive = scheme.len() == 1 && rest.starts_with(['\\', '/']) && !rest.starts_with("//");
    (is_scheme && !is_drive).then_some((scheme, rest))
}

/// A path by its beginning, whatever letters follow: absolute, or relative to a folder that is named.
fn looks_like_a_path(path: &str) -> bool {
    let begins = ["/", "./", "../", "~/", "\\", ".\\", "..\\"].iter().any(|prefix| path.starts_with(prefix));
    let drive = matches!(path.as_bytes(), [letter, b':', b'/' | b'\\', ..] if letter.is_ascii_alphabetic());
    begins && !path.starts_with("//") || drive
}

/// Whether `user:password@host` follows the scheme of a file: most likely the scheme is wrong, and the rest is no name of a file.
fn names_a_user(rest: &str) -> bool {
    let userinfo = rest.split_once(':').is_some_and(|(_, rest)| rest.contains('@'));
    userinfo && !rest.starts_with("//") && !looks_like_a_path(rest)
}

fn a_user_of_a_file(scheme: &str) -> Error {
    let scheme = scheme.to_ascii_lowercase();
    invalid(format!(
        "the DSN has a user and a password, and {scheme}: is a file: write {scheme}:./path for a file whose name has ':' and '@' \
         in it, and postgres://user:password@host:port/database for PostgreSQL"
    ))
}

fn not_a_path() -> Error {
    invalid(
        "the DSN is neither a file nor a database on a server: write sqlite:./path for a file whose name has ':', '@' or '=' \
         in it, and postgres://user:password@host:port/database or host=… user=… password=… dbname=… for PostgreSQL",
    )
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
            _ if name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()) => {
                return Err(invalid(format!("unknown option '{name}': the only one here is durability")));
            }
            _ => return Err(invalid("unknown option: the only one here is durability")),
        }
    }
    if path.is_empty() {
        return Err(invalid("the DSN names no file: give sqlite:path, or sqlite::memory: for a database in memory"));
    }
    let path = (path != ":memory:").then(|| PathBuf::from(decoded(path)));
    Ok(FileDsn { path, durability })
}

fn postgres(options: libpq::Options) -> Result<PostgresDsn> {
    let mut schema = "tenure".to_owned();
    let mut pool = 10;
    let mut statement_timeout = Duration::from_secs(30);
    let mut pgbouncer = false;
    let mut direct = None;
    let mut ssl = SslMode::Prefer;
    let mut verify = Verify::Nothing;
    let (mut hosts, mut ports) = (String::new(), String::new());
    let mut config = defaults();
    for (name, value) in options {
        match name.as_str() {
            "schema" => schema = schema_name(value)?,
            "pool_size" => pool = number(&name, &value, 1..=1000)? as usize,
            "statement_timeout" => statement_timeout = Duration::from_secs(number(&name, &value, 1..=86_400)?),
            "pgbouncer" => pgbouncer = flag(&name, &value)?,
            "direct" => direct = Some(host_and_port(&value)?),
            "host" => hosts = value,
            "port" => ports = value,
            "sslmode" => {
                (ssl, verify) = match value.as_str() {
                    "disable" => (SslMode::Disable, Verify::Nothing),
                    "allow" | "prefer" => (SslMode::Prefer, Verify::Nothing),
                    "require" => (SslMode::Require, Verify::Nothing),
                    "verify-ca" | "verify-full" => (SslMode::Require, Verify::Full),
                    _ => return Err(invalid("sslmode is disable, prefer, require, verify-ca or verify-full")),
                }
            }
            _ => apply(&mut config, &name, &value)?,
        }
    }
    config.ssl_mode(ssl);
    let hosts = servers(&hosts, &ports)?;
    Ok(PostgresDsn { config, hosts, schema, pool, statement_timeout, pgbouncer, direct, verify })
}

/// Limits for what a lost network or a frozen server leaves unanswered.
fn defaults() -> Config {
    let mut config = Config::new();
    config
        .application_name("tenure")
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_user_timeout(TCP_USER_TIMEOUT)
        .keepalives_idle(KEEPALIVES_IDLE)
        .keepalives_interval(KEEPALIVES_INTERVAL)
        .keepalives_retries(KEEPALIVES_COUNT);
    config
}

/// Every host with its port; one port serves all hosts, and an empty one is 5432.
fn servers(hosts: &str, ports: &str) -> Result<Vec<Server>> {
    let hosts: Vec<&str> = hosts.split(',').collect();
    let ports: Vec<&str> = ports.split(',').collect();
    let empty = ports.iter().all(|port| port.is_empty());
    if ports.len() != 1 && ports.len() != hosts.len() && !empty {
        return Err(invalid("port is one number, or one for each host, separated by commas"));
    }
    let server = |(n, host): (usize, &&str)| {
        let port = match ports.get(n).or(ports.first()).copied().unwrap_or_default().trim() {
            "" => 5432,
            port => port.parse().map_err(|_| libpq::unreadable())?,
        };
        let mut parsed = Config::new();
        parsed.host(if host.trim().is_empty() { "localhost" } else { host.trim() });
        let host = parsed.get_hosts().first().cloned().ok_or_else(libpq::unreadable)?;
        Ok(Server { host, port })
    };
    hosts.iter().enumerate().map(server).collect()
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
        "dbname" => config.dbname(database(value)?),
        "channel_binding" => config.channel_binding(match value {
            "disable" => ChannelBinding::Disable,
            "prefer" => ChannelBinding::Prefer,
            "require" => ChannelBinding::Require,
            _ => return Err(invalid("channel_binding is disable, prefer or require")),
        }),
        "target_session_attrs" => config.target_session_attrs(match value {
            "any" => tokio_postgres::config::TargetSessionAttrs::Any,
            "read-write" => tokio_postgres::config::TargetSessionAttrs::ReadWrite,
            _ => return Err(invalid("target_session_attrs is any or read-write")),
        }),
        _ => return Err(invalid(format!("unknown option: known are {}", libpq::KNOWN.join(", ")))),
    };
    Ok(())
}

/// libpq reads a connection string in this place too. The server's messages and our own repeat the name of the database, so
/// none may come here with its password.
fn database(name: &str) -> Result<&str> {
    if name.contains("://") || name.contains('=') || name.split_once(':').is_some_and(|(_, rest)| rest.contains('@')) {
        return Err(invalid(
            "dbname is a connection string of its own: give the name of the database there, and the rest in options",
        ));
    }
    Ok(name)
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
            // Not repeated: it may be the rest of a password with a `?` in it.
            None => Err(invalid("an option has no value: write name=value")),
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
            ("postgres://u:secret@h/db?hostaddr=127.0.0.1", "'hostaddr' of libpq is not supported"),
            ("host=h password=secret sslrootcert=ca.pem", "'sslrootcert' of libpq is not supported"),
            ("service=secret dbname=x", "'service' of libpq is not supported"),
            ("sqlite://u:secret@h/db", "write sqlite:./path for a file"),
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
    fn a_path_is_what_looks_like_one() {
        for dsn in
            ["jobs.db", "./a b/jobs.db", "my jobs.db", "C:\\jobs.db", "C:/data/jobs.db", "../x=y@z.db", "/a/x@y.db"]
        {
            assert_eq!(path(dsn).as_deref(), Some(dsn));
        }
        for (dsn, file) in [
            ("sqlite:/abs/x@y.db", "/abs/x@y.db"),
            ("sqlite:/abs/x:y@z.db", "/abs/x:y@z.db"),
            ("sqlite:./x:y@z.db", "./x:y@z.db"),
            ("sqlite:../x:y@z.db", "../x:y@z.db"),
            ("sqlite:C:\\x@y.db", "C:\\x@y.db"),
            ("sqlite:x@y.db", "x@y.db"),
            ("sqlite://./x:y@z.db", "./x:y@z.db"),
            ("sqlite:///abs/x:y@z.db", "/abs/x:y@z.db"),
            ("turso:/abs/x:y@z.db", "/abs/x:y@z.db"),
            ("SQLite:x=y.db", "x=y.db"),
            ("sqlite:a:b.db", "a:b.db"),
            ("./jobs.db?durability=crash_only", "./jobs.db"),
        ] {
            assert_eq!(path(dsn).as_deref(), Some(file));
        }
    }

    #[test]
    fn schemes_are_read_in_any_case() {
        for dsn in ["Postgres://me:pw@db/app", "POSTGRESQL://me:pw@db/app"] {
            let dsn = postgres_dsn(dsn);
            assert_eq!((texts(&dsn.hosts), dsn.config.get_dbname()), (vec!["db:5432".to_owned()], Some("app")));
        }
        assert!(matches!("Turso:x.db".parse().unwrap(), Dsn::Turso(_)));
    }

    #[test]
    fn a_password_is_read_with_its_special_characters() {
        for (dsn, password) in [
            ("postgres://me:p@ss@db/app", "p@ss"),
            ("postgres://me:p?ss@db/app?pool_size=3", "p?ss"),
            ("postgres://me:p?s=s@db/app", "p?s=s"),
            ("postgres://me:p%40%3F%2Fss@db/app", "p@?/ss"),
            ("postgres://me:p:ss@db/app", "p:ss"),
            ("postgres://me:100%@db/app", "100%"),
            ("postgres://me@db/app?password=p@s/s", "p@s/s"),
            ("host=db user=me password='p@ ?ss' dbname=app", "p@ ?ss"),
            (r"host=db user=me password=p\ \'\\s dbname=app", r"p '\s"),
            ("dbname = app user= me password =x host='db'", "x"),
        ] {
            let read = postgres_dsn(dsn);
            let found = read.config.get_password().map(String::from_utf8_lossy);
            assert_eq!(found.as_deref(), Some(password), "{dsn}");
            assert_eq!(texts(&read.hosts), ["db:5432"], "{dsn}");
            assert_eq!((read.config.get_user(), read.config.get_dbname()), (Some("me"), Some("app")), "{dsn}");
        }
        let mail = postgres_dsn("postgres://me:pw@db?application_name=a@b");
        assert_eq!((texts(&mail.hosts), mail.config.get_application_name()), (vec!["db:5432".to_owned()], Some("a@b")));
    }

    #[test]
    fn key_value_dsns_take_our_options_too() {
        let dsn = postgres_dsn(
            "host=a,b port=1,2 dbname=app schema='my jobs' pool_size=3 pgbouncer=true sslmode=verify-full",
        );
        assert_eq!((dsn.schema.as_str(), dsn.pool, dsn.pgbouncer, dsn.verify), ("my jobs", 3, true, Verify::Full));
        assert_eq!(texts(&dsn.hosts), ["a:1", "b:2"]);
        let with = dsn_with("host=a dbname=app", &[("schema", r"it's \ mine".to_owned())]);
        assert_eq!(postgres_dsn(&with).schema, r"it's \ mine");
        let with = dsn_with("postgres://me:p?w@a/app", &[("schema", "x".to_owned()), ("pool_size", "7".to_owned())]);
        assert_eq!((postgres_dsn(&with).schema.as_str(), postgres_dsn(&with).pool), ("x", 7));
    }

    #[test]
    fn options_can_be_added_to_every_dsn() {
        let schema = [("schema", "s".to_owned()), ("pool_size", "7".to_owned())];
        for dsn in [
            "postgres://h/db",
            "postgres://h/db?",
            "postgres://h",
            "postgres://me:p?w@h/db",
            "postgres://me:p@w@h/db?application_name=x",
            "postgres://h/db?application_name=a@b",
            "postgres://h?application_name=a@b",
            "postgres://me@h/db?password=p@?/w",
            "postgres:///db?host=/run/postgresql&password=p@w",
            "host=h dbname=db password='p@?w'",
        ] {
            let (before, after) = (postgres_dsn(dsn), postgres_dsn(&dsn_with(dsn, &schema)));
            assert_eq!((after.schema.as_str(), after.pool), ("s", 7), "{dsn}");
            assert_eq!(after.config, before.config, "{dsn}");
            assert_eq!(after.hosts, before.hosts, "{dsn}");
        }
        let mail = dsn_with("postgres://h/db?user=me@corp&password=x", &schema);
        let mail = postgres_dsn(&mail).config;
        assert_eq!((mail.get_user(), mail.get_password()), (Some("me@corp"), Some(&b"x"[..])));
        let durable = [("durability", "crash_only".to_owned())];
        for dsn in ["sqlite:a@b.db", "./x@y.db", "turso:///abs/a@b.db", "sqlite:a.db?durability=full"] {
            let (Ok(Dsn::Sqlite(before) | Dsn::Turso(before)), Ok(Dsn::Sqlite(after) | Dsn::Turso(after))) =
                (dsn.parse(), dsn_with(dsn, &durable).parse())
            else {
                panic!("{dsn} is not a file")
            };
            assert_eq!((after.path, after.durability), (before.path, Durability::CrashOnly), "{dsn}");
        }
    }

    #[test]
    fn channel_binding_is_read_from_the_dsn() {
        use tokio_postgres::config::ChannelBinding::{Disable, Prefer, Require};
        for (dsn, binding) in [
            ("postgres://h/db", Prefer),
            ("postgres://h/db?sslmode=require&channel_binding=require", Require),
            ("postgres://h/db?channel_binding=prefer", Prefer),
            ("host=h channel_binding=disable", Disable),
        ] {
            assert_eq!(postgres_dsn(dsn).config.get_channel_binding(), binding, "{dsn}");
        }
        let error = "postgres://h/db?channel_binding=s3cret".parse::<Dsn>().unwrap_err().to_string();
        assert!(
            error.contains("channel_binding is disable, prefer or require") && !error.contains("s3cret"),
            "{error}"
        );
    }

    /// The connection strings of the guide's tables and of the README's.
    #[test]
    fn every_documented_dsn_can_be_read() {
        for (text, heading) in [
            (include_str!("../../../docs/guide/choosing-a-backend.md"), "| write | for |"),
            (include_str!("../../../README.md"), "| DSN | what it opens |"),
        ] {
            let rows =
                text.lines().skip_while(|line| *line != heading).skip(2).take_while(|line| line.starts_with('|'));
            let mut found = Vec::new();
            for row in rows {
                let cell = row.split('|').nth(1).unwrap();
                found.extend(cell.split('`').skip(1).step_by(2));
            }
            let forms = |prefix: &str| found.iter().any(|dsn| dsn.starts_with(prefix));
            assert!(forms("sqlite:") && forms("postgres://") && forms("host=") && forms("turso:"), "{found:?}");
            for dsn in found {
                // `port` and `options` stand for what a reader writes there.
                let dsn = dsn.replace(":port/", ":5432/").replace("?options", "?pool_size=3");
                assert!(dsn.parse::<Dsn>().is_ok(), "{dsn}");
            }
        }
    }

    /// DSNs that cannot be read, or that lead nowhere good: none of them is a file, and nothing said about them has `s3cret`.
    const HOSTILE: &[&str] = &[
        "me:s3cret@db/app",
        "u:s3cret@db/app",
        "1:s3cret@db/app",
        "me:s3cret@db:5432/app?schema=x",
        "//me:s3cret@db/app",
        "me@db/s3cret",
        "postgres:/me:s3cret@db/app",
        "postgres:me:s3cret@db/app",
        "postgresql:u:s3cret@db/app",
        "postgres//me:s3cret@db/app",
        "postgres:\\\\me:s3cret@db",
        "postgers://me:s3cret@db/app",
        "mysql://me:s3cret@db/app",
        "jdbc:postgresql://db/app?user=me&password=s3cret",
        "file:s3cret?password=s3cret",
        "pasword=s3cret host=db",
        "host=db password=s3cret pasword=s3cret",
        "host=db password='s3cret",
        "host=db dbname=postgres://me:s3cret@db/app",
        "host=db dbname=me:s3cret@db/app",
        "host=db dbname='host=db password=s3cret'",
        "postgres://db?dbname=postgresql://me:s3cret@db/app",
        "postgres://db/app%3Fpassword=s3cret",
        "host=db password=my s3cret",
        "host=db password=my s3cret=x",
        "host=db s3cret",
        "Host=db Password=s3cret",
        "Server=db;User Id=me;Password=s3cret;",
        "postgres://me:se/s3cret@db/app",
        "postgres://me:80/s3cret@db/app",
        "postgres://me:80/s3cret?x@db/app",
        "postgres://me:80/x?s3cret@db/app",
        "postgres://me:80/x?s3cret=1@db/app",
        "postgres://me:a@b/s3cret@db/app",
        "postgres://me:a@b?s3cret@db/app",
        "postgres://me:s3cret@db:port/app",
        "postgres://me:s3cret@db/app?s3cret",
        "postgres://me:s3cret@[::1/app",
        "postgres://me:s3cret@db/app?port=s3cret",
        "postgres://me:s3cret@db/app?sslmode=s3cret",
        "postgres://me:s3cret@db/app?direct=s3cret",
        "postgres://me:s3cret@db/app?pool_size=s3cret",
        "turso://my-db.turso.io?auth_token=s3cret",
        "libsql://my-db.turso.io?authToken=s3cret",
        "sqlite://me:s3cret@db/app",
        "SQLite://me:s3cret@db/app?durability=full",
        "sqlite://me:x?durability=s3cret@db/app",
        "sqlite:me:s3cret@db/app",
        "SQLite:me:s3cret@db:5432/app?durability=full",
        "turso:me:s3cret@db/app",
        "libsql:me:s3cret@db/app",
        "jobs.db?s3cret",
        "jobs.db?password=s3cret",
    ];

    #[test]
    fn no_error_repeats_a_secret() {
        for dsn in HOSTILE {
            let error = dsn.parse::<Dsn>().map(|read| format!("{read:?}")).expect_err(dsn);
            assert!(matches!(error.kind(), Kind::InvalidDsn | Kind::Unsupported), "{dsn}: {error:?}");
            let said = format!("{error} {error:?} {}", dsn_shown(dsn));
            assert!(!said.contains("s3cret"), "{dsn}: {said}");
        }
        for dsn in ["postgres://me:s3cret@db/app", "host=db password=s3cret", "postgres://me:s3cret@x@db/app?schema=x"]
        {
            let said = format!("{:?} {}", dsn.parse::<Dsn>().unwrap(), dsn_shown(dsn));
            assert!(!said.contains("s3cret"), "{dsn}: {said}");
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
        assert_eq!(texts(&postgres_dsn("postgres:///db?port=7").hosts), ["localhost:7"]);
        assert_eq!(texts(&postgres_dsn("postgresql:///db?host=/run/postgresql").hosts), ["/run/postgresql:5432"]);
        assert_eq!(
            texts(&postgres_dsn("postgresql://?host=/run/postgresql&dbname=db").hosts),
            ["/run/postgresql:5432"]
        );
        assert_eq!(texts(&postgres_dsn("postgres://%2Frun%2Fpostgresql/db").hosts), ["/run/postgresql:5432"]);
        assert_eq!(texts(&postgres_dsn("host=/run/postgresql,b port=6 dbname=db").hosts), ["/run/postgresql:6", "b:6"]);
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
