//! What `tenure serve` is told: by flags, by the environment, by a YAML file, and by defaults, in this order.
//!
//! Invariants: a setting has one parser whoever gives it, so it means the same everywhere; what cannot be read, or is
//! not known, is an error that names the setting and says what is allowed; nothing here prints a password; an address
//! that other machines can reach is refused unless something protects it.

mod setting;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use serde::Deserialize;
use tenure_store::{Error, Kind, Result, config_error_shown};

use self::setting::{Address, Affinity, Count, Filter, Size, Span, parsed};
use crate::serve::Transport;
use crate::{Options, StoreOptions};

const LISTEN: &str = "127.0.0.1:2319";
const FILTER: &str = "info,tenure=info";
/// The largest body of any RPC, an import's: less memory than that could never take one.
const LARGEST_BODY: usize = 64_000_000;

/// Serves queues over HTTP, out of one process and the database you already have.
///
/// Every setting can be a flag, an environment variable or a key of a YAML file; flags win over the environment, and
/// the environment wins over the file.
#[derive(Args, Default)]
pub struct Serve {
    /// A YAML file with these settings, and with several databases; example.yaml explains every key.
    #[arg(long, value_name = "FILE", env = "TENURE_CONFIG")]
    config: Option<PathBuf>,
    /// Reads the settings, says whether they are right, and ends.
    #[arg(long)]
    pub(crate) check: bool,
    /// Where to listen, as host:port; port 0 takes any that is free [default: 127.0.0.1:2319].
    #[arg(long, value_name = "ADDRESS", env = "TENURE_LISTEN")]
    listen: Option<Address>,
    /// The database: sqlite:path, postgres://…, 'host=… dbname=…', turso:///path or :memory: [default: sqlite:tenure.db].
    #[arg(long, env = "TENURE_DSN", hide_env_values = true)]
    dsn: Option<String>,
    /// Knows callers by their API keys, and lets them do only what their roles allow.
    #[arg(long, value_name = "BOOL", env = "TENURE_AUTH", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", value_parser = BoolishValueParser::new())]
    auth: Option<bool>,
    #[command(flatten)]
    tls: TlsFiles,
    /// Listens where other machines can reach it even without authentication and without encryption.
    #[arg(long, value_name = "BOOL", env = "TENURE_INSECURE", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", value_parser = BoolishValueParser::new())]
    insecure: Option<bool>,
    /// Answers in JSON whenever a request has no Accept header, even one that came as protobuf.
    #[arg(long, value_name = "BOOL", env = "TENURE_STRICT_ACCEPT", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", value_parser = BoolishValueParser::new())]
    strict_accept: Option<bool>,
    /// How long running requests may take to finish once the server is asked to stop [default: 30s].
    #[arg(long, value_name = "DURATION", env = "TENURE_SHUTDOWN_TIMEOUT")]
    shutdown_timeout: Option<Span>,
    #[command(flatten)]
    log: Log,
    #[command(flatten, next_help_heading = "Limits")]
    limits: Limits,
    /// Answers the requests that only tests make; needs a program built with the feature test-hooks.
    #[arg(long, hide = true)]
    test_hooks: bool,
}

/// The YAML file.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    #[serde(deserialize_with = "parsed")]
    listen: Option<Address>,
    storage: Option<Vec<Storage>>,
    auth: Option<bool>,
    tls: TlsFiles,
    insecure: Option<bool>,
    strict_accept: Option<bool>,
    limits: Limits,
    log: Log,
    #[serde(deserialize_with = "parsed")]
    shutdown_timeout: Option<Span>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Storage {
    name: String,
    dsn: String,
    #[serde(default, deserialize_with = "parsed")]
    affinity: Option<Affinity>,
}

// The groups below are flags and keys at once. They have no doc comments, which would replace the command's own.

#[derive(Args, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct TlsFiles {
    /// The certificate chain, PEM; together with --tls-key it makes the server speak HTTPS.
    #[arg(long = "tls-certificate", value_name = "FILE", env = "TENURE_TLS_CERTIFICATE")]
    certificate: Option<PathBuf>,
    /// The certificate's private key, PEM, not encrypted.
    #[arg(long = "tls-key", value_name = "FILE", env = "TENURE_TLS_KEY")]
    key: Option<PathBuf>,
}

#[derive(Args, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Log {
    /// What to log, such as warn or info,tenure=debug [default: info,tenure=info].
    #[arg(long = "log", value_name = "FILTER", env = "TENURE_LOG")]
    #[serde(deserialize_with = "parsed")]
    filter: Option<Filter>,
    /// How the log is written [default: text].
    #[arg(long = "log-format", value_name = "FORMAT", env = "TENURE_LOG_FORMAT")]
    format: Option<LogFormat>,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one JSON object a line.
    Json,
}

#[derive(Args, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Limits {
    /// Connections that are open at once; further callers wait until one closes [default: 1000].
    #[arg(long = "limit-connections", value_name = "COUNT", env = "TENURE_LIMIT_CONNECTIONS")]
    #[serde(deserialize_with = "parsed")]
    connections: Option<Count>,
    /// Items in one produce request [default: 1000].
    #[arg(long = "limit-produce-batch", value_name = "COUNT", env = "TENURE_LIMIT_PRODUCE_BATCH")]
    #[serde(deserialize_with = "parsed")]
    produce_batch: Option<Count>,
    /// Items that one lease request may ask for [default: 1000].
    #[arg(long = "limit-lease-batch", value_name = "COUNT", env = "TENURE_LIMIT_LEASE_BATCH")]
    #[serde(deserialize_with = "parsed")]
    lease_batch: Option<Count>,
    /// Items in one complete or retry request [default: 1000].
    #[arg(long = "limit-complete-batch", value_name = "COUNT", env = "TENURE_LIMIT_COMPLETE_BATCH")]
    #[serde(deserialize_with = "parsed")]
    complete_batch: Option<Count>,
    /// Calls that one queue carries out at once, leases that wait not counted [default: 1000].
    #[arg(long = "limit-requests-per-queue", value_name = "COUNT", env = "TENURE_LIMIT_REQUESTS_PER_QUEUE")]
    #[serde(deserialize_with = "parsed")]
    requests_per_queue: Option<Count>,
    /// Bytes in the body of one produce request [default: 5MB].
    #[arg(long = "limit-produce-bytes", value_name = "SIZE", env = "TENURE_LIMIT_PRODUCE_BYTES")]
    #[serde(deserialize_with = "parsed")]
    produce_bytes: Option<Size>,
    /// Bytes of request bodies held in memory at once; further bodies wait [default: 256MiB].
    #[arg(long = "limit-body-memory", value_name = "SIZE", env = "TENURE_LIMIT_BODY_MEMORY")]
    #[serde(deserialize_with = "parsed")]
    body_memory: Option<Size>,
    /// How long a new connection may take to send the header of its first request [default: 100s].
    #[arg(long = "limit-header-timeout", value_name = "DURATION", env = "TENURE_LIMIT_HEADER_TIMEOUT")]
    #[serde(deserialize_with = "parsed")]
    header_timeout: Option<Span>,
    /// How long a body may take to arrive, and a second more for every 64 KiB of it [default: 30s].
    #[arg(long = "limit-body-timeout", value_name = "DURATION", env = "TENURE_LIMIT_BODY_TIMEOUT")]
    #[serde(deserialize_with = "parsed")]
    body_timeout: Option<Span>,
    /// How long a connection is kept open for the next request [default: 2m].
    #[arg(long = "limit-idle-timeout", value_name = "DURATION", env = "TENURE_LIMIT_IDLE_TIMEOUT")]
    #[serde(deserialize_with = "parsed")]
    idle_timeout: Option<Span>,
}

/// Everything that `tenure serve` needs to know, checked.
pub(crate) struct Config {
    pub(crate) listen: String,
    pub(crate) options: Options,
    pub(crate) transport: Transport,
    /// Certificate chain and key.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    pub(crate) log_filter: String,
    pub(crate) log_format: LogFormat,
    insecure: bool,
}

impl Config {
    /// What the flags, the environment that clap has read into them, and the file they name say.
    pub(crate) fn load(flags: &Serve) -> Result<Self> {
        let Some(path) = &flags.config else { return settle(flags, File::default()) };
        let text = std::fs::read_to_string(path).map_err(|error| {
            invalid(format!("the configuration file '{}' cannot be read: {error}", path.display())).with_source(error)
        })?;
        settle(flags, read(path, &text)?)
    }

    /// Refuses addresses that other machines can reach, unless something protects them or somebody insists.
    pub(crate) fn admit(&self, addresses: &[SocketAddr]) -> Result<()> {
        let public = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback());
        match public {
            Some(address) if !self.options.auth && self.tls.is_none() && !self.insecure => Err(invalid(format!(
                "listen is '{}', and other machines can reach {address} with nothing to protect it: turn on \
                 authentication (--auth) or encryption (--tls-certificate and --tls-key), listen on {LISTEN}, or say \
                 --insecure when everybody on the network may do everything",
                self.listen
            ))),
            _ => Ok(()),
        }
    }
}

fn read(path: &Path, text: &str) -> Result<File> {
    let file = path.display();
    let read: File = serde_yaml_ng::from_str(text)
        .map_err(|error| invalid(format!("{file}: {}", config_error_shown(&error.to_string()))))?;
    for (n, store) in read.storage.iter().flatten().enumerate() {
        if store.name.trim().is_empty() {
            return Err(invalid(format!("{file}: storage[{n}].name: empty: every store needs a name of its own")));
        }
        if read.storage.iter().flatten().take(n).any(|other| other.name == store.name) {
            let name = &store.name;
            return Err(invalid(format!("{file}: storage[{n}].name: another store is named '{name}' already")));
        }
    }
    if read.storage.as_ref().is_some_and(Vec::is_empty) {
        return Err(invalid(format!("{file}: storage: empty: list at least one store, or leave the key out")));
    }
    Ok(read)
}

/// The flags over the file over the defaults.
fn settle(flags: &Serve, file: File) -> Result<Config> {
    let limits = flags.limits.over(file.limits);
    let mut options = Options::default();
    if let Some(stores) = stores(flags.dsn.as_deref(), file.storage) {
        options.stores = stores;
    }
    options.auth = flags.auth.or(file.auth).unwrap_or(options.auth);
    options.mirror = flags.strict_accept.or(file.strict_accept).map_or(options.mirror, |strict| !strict);
    options.max_produce_batch = limits.produce_batch.map_or(options.max_produce_batch, Count::get);
    options.max_lease_batch = limits.lease_batch.map_or(options.max_lease_batch, Count::get);
    options.max_complete_batch = limits.complete_batch.map_or(options.max_complete_batch, Count::get);
    options.max_requests_per_queue = limits.requests_per_queue.map_or(options.max_requests_per_queue, Count::get);
    options.max_produce_bytes = limits.produce_bytes.map_or(options.max_produce_bytes, |size| size.0);
    options.max_body_memory = limits.body_memory.map_or(options.max_body_memory, |size| size.0);
    options.test_hooks = flags.test_hooks;
    let least = options.max_produce_bytes.max(LARGEST_BODY);
    if options.max_body_memory < least {
        return Err(invalid(format!(
            "limits.body-memory is {} bytes: give at least {least}, so that the largest request fits",
            options.max_body_memory
        )));
    }
    if options.test_hooks && !cfg!(feature = "test-hooks") {
        return Err(invalid("--test-hooks: this program was built without them: build it with --features test-hooks"));
    }
    let mut transport = Transport::default();
    transport.connections = limits.connections.map_or(transport.connections, |count| count.0);
    transport.header_timeout = limits.header_timeout.map_or(transport.header_timeout, |span| span.0);
    transport.body_timeout = limits.body_timeout.map_or(transport.body_timeout, |span| span.0);
    transport.idle_timeout = limits.idle_timeout.map_or(transport.idle_timeout, |span| span.0);
    let shutdown_timeout = flags.shutdown_timeout.or(file.shutdown_timeout);
    transport.shutdown_timeout = shutdown_timeout.map_or(transport.shutdown_timeout, |span| span.0);
    let certificate = flags.tls.certificate.clone().or(file.tls.certificate);
    let tls = match (certificate, flags.tls.key.clone().or(file.tls.key)) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => return Err(invalid("tls.certificate is given without tls.key: give both")),
        (None, Some(_)) => return Err(invalid("tls.key is given without tls.certificate: give both")),
    };
    Ok(Config {
        listen: flags.listen.clone().or(file.listen).map_or_else(|| LISTEN.to_owned(), |address| address.0),
        options,
        transport,
        tls,
        log_filter: flags.log.filter.clone().or(file.log.filter).map_or_else(|| FILTER.to_owned(), |filter| filter.0),
        log_format: flags.log.format.or(file.log.format).unwrap_or_default(),
        insecure: flags.insecure.or(file.insecure).unwrap_or(false),
    })
}

/// One DSN is one store; otherwise they are those of the file, if it names any.
fn stores(dsn: Option<&str>, listed: Option<Vec<Storage>>) -> Option<Vec<StoreOptions>> {
    if let Some(dsn) = dsn {
        return Some(vec![StoreOptions { name: "main".to_owned(), dsn: dsn.to_owned(), affinity: 1.0 }]);
    }
    let store = |Storage { name, dsn, affinity }| {
        let affinity = affinity.map_or(1.0, |Affinity(affinity)| affinity);
        StoreOptions { name, dsn, affinity }
    };
    listed.map(|listed| listed.into_iter().map(store).collect())
}

impl Limits {
    fn over(self, below: Limits) -> Limits {
        Limits {
            connections: self.connections.or(below.connections),
            produce_batch: self.produce_batch.or(below.produce_batch),
            lease_batch: self.lease_batch.or(below.lease_batch),
            complete_batch: self.complete_batch.or(below.complete_batch),
            requests_per_queue: self.requests_per_queue.or(below.requests_per_queue),
            produce_bytes: self.produce_bytes.or(below.produce_bytes),
            body_memory: self.body_memory.or(below.body_memory),
            header_timeout: self.header_timeout.or(below.header_timeout),
            body_timeout: self.body_timeout.or(below.body_timeout),
            idle_timeout: self.idle_timeout.or(below.idle_timeout),
        }
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(Kind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use super::*;

    fn file(text: &str) -> Result<Config> {
        with(&Serve::default(), text)
    }

    fn with(flags: &Serve, text: &str) -> Result<Config> {
        settle(flags, read(Path::new("tenure.yaml"), text)?)
    }

    fn refusal(text: &str) -> String {
        file(text).err().unwrap_or_else(|| panic!("accepted: {text}")).to_string()
    }

    fn store(name: &str, dsn: &str, affinity: f64) -> StoreOptions {
        StoreOptions { name: name.to_owned(), dsn: dsn.to_owned(), affinity }
    }

    #[test]
    fn without_any_setting_it_is_a_file_here_and_a_port_for_this_machine_alone() {
        for config in [Config::load(&Serve::default()).unwrap(), file("").unwrap(), file("limits:\n").unwrap()] {
            assert_eq!(config.listen, "127.0.0.1:2319");
            assert_eq!(config.options.stores, [store("main", "sqlite:tenure.db", 1.0)]);
            assert!(!config.options.auth && config.options.mirror && config.tls.is_none());
            assert_eq!(config.options.max_body_memory, 256 << 20);
            assert_eq!(config.transport.connections, 1000);
            assert_eq!((config.log_filter.as_str(), config.log_format), ("info,tenure=info", LogFormat::Text));
        }
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_the_defaults() {
        let text = "listen: 127.0.0.1:1\nauth: true\nstrict-accept: true\nstorage: [{name: a, dsn: a.db}]\n\
                    limits: {connections: 7, lease-batch: 8, body-memory: 1GiB, idle-timeout: 90s}\n\
                    log: {format: json}\nshutdown-timeout: 1m30s\n";
        let config = file(text).unwrap();
        assert_eq!((config.listen.as_str(), config.options.auth, config.options.mirror), ("127.0.0.1:1", true, false));
        assert_eq!((config.transport.connections, config.options.max_lease_batch), (7, 8));
        assert_eq!((config.options.max_produce_batch, config.options.max_body_memory), (1000, 1 << 30));
        assert_eq!(config.transport.idle_timeout, Duration::from_secs(90));
        assert_eq!((config.log_format, config.transport.shutdown_timeout), (LogFormat::Json, Duration::from_secs(90)));
        let mut flags = Serve { auth: Some(false), dsn: Some("b.db".to_owned()), ..Serve::default() };
        flags.listen = Some("127.0.0.1:2".parse().unwrap());
        flags.limits.connections = Some("9".parse().unwrap());
        let config = with(&flags, text).unwrap();
        assert_eq!((config.listen.as_str(), config.options.auth, config.options.mirror), ("127.0.0.1:2", false, false));
        assert_eq!((config.transport.connections, config.options.max_lease_batch), (9, 8));
        assert_eq!(config.options.stores, [store("main", "b.db", 1.0)]);
    }

    #[test]
    fn every_flag_is_an_environment_variable_too_and_help_shows_no_dsn() {
        for arg in Serve::augment_args(clap::Command::new("serve")).get_arguments() {
            let name = arg.get_long().unwrap();
            if ["check", "test-hooks"].contains(&name) {
                continue;
            }
            let expected = format!("TENURE_{}", name.to_uppercase().replace('-', "_"));
            assert_eq!(arg.get_env().unwrap().to_str(), Some(expected.as_str()));
            assert_eq!(arg.is_hide_env_values_set(), name == "dsn", "{name}");
        }
    }

    #[test]
    fn a_key_that_nobody_knows_is_refused_with_those_that_are_known() {
        let said = refusal("lisen: 127.0.0.1:1\n");
        assert!(said.starts_with("tenure.yaml: unknown field `lisen`") && said.contains("`listen`"), "{said}");
        let said = refusal("listen: 127.0.0.1:1\nlimits:\n  conections: 5\n");
        assert!(said.contains("limits: unknown field `conections`") && said.contains("`connections`"), "{said}");
        assert!(said.contains("line 3"), "{said}");
        let said = refusal("storage:\n  - {name: a, dsn: a.db, afinity: 2}\n");
        assert!(said.contains("storage[0]: unknown field `afinity`"), "{said}");
    }

    #[test]
    fn a_bad_value_is_refused_with_its_key_and_what_is_allowed() {
        for (text, key, allowed) in [
            ("listen: nowhere\n", "listen:", "host:port"),
            ("listen: 127.0.0.1:99999\n", "listen:", "host:port"),
            ("auth: maybe\n", "auth:", "boolean"),
            ("limits: {connections: 0}\n", "limits.connections:", "from 1 to 1000000"),
            ("limits: {lease-batch: many}\n", "limits.lease-batch:", "from 1 to 1000000"),
            ("limits: {produce-bytes: 5 apples}\n", "limits.produce-bytes:", "256MiB"),
            ("limits: {body-memory: 1MB}\n", "limits.body-memory ", "at least 64000000"),
            ("limits: {header-timeout: 10}\n", "limits.header-timeout:", "500ms, 30s or 5m"),
            ("shutdown-timeout: -1s\n", "shutdown-timeout:", "at most 24h"),
            ("log: {format: xml}\n", "log.format:", "`text` or `json`"),
            ("log: {filter: tenure=loud}\n", "log.filter:", "info,tenure=debug"),
            ("tls: {certificate: a.pem}\n", "tls.certificate ", "tls.key"),
            ("tls: {key: a.pem}\n", "tls.key ", "tls.certificate"),
        ] {
            let said = refusal(text);
            assert!(said.contains(key) && said.contains(allowed), "{text}: {said}");
        }
    }

    #[test]
    fn several_stores_have_names_and_shares() {
        let text = "storage:\n- {name: a, dsn: 'sqlite:a.db', affinity: 2.5}\n- {name: b, dsn: 'postgres://h/b'}\n";
        let stores = file(text).unwrap().options.stores;
        assert_eq!(stores, [store("a", "sqlite:a.db", 2.5), store("b", "postgres://h/b", 1.0)]);
        for affinity in ["0", "-1", ".inf", ".nan", "much"] {
            let said = refusal(&format!("storage: [{{name: a, dsn: a.db, affinity: {affinity}}}]\n"));
            assert!(said.contains("storage[0].affinity:") && said.contains("a number above 0"), "{affinity}: {said}");
        }
        for (text, part) in [
            ("storage: [{name: a, dsn: a.db}, {name: a, dsn: b.db}]\n", "storage[1].name: another store is named 'a'"),
            ("storage: [{name: '', dsn: a.db}]\n", "storage[0].name: empty"),
            ("storage: [{name: a}]\n", "missing field `dsn`"),
            ("storage: []\n", "storage: empty"),
        ] {
            assert!(refusal(text).contains(part), "{text}: {}", refusal(text));
        }
    }

    #[test]
    fn an_address_that_others_reach_needs_protection_or_insistence() {
        let addresses = |text: &str| vec![text.parse::<SocketAddr>().unwrap()];
        let bare = file("").unwrap();
        for own in ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            bare.admit(&addresses(own)).unwrap();
        }
        for public in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[2001:db8::1]:1"] {
            let said = bare.admit(&addresses(public)).unwrap_err().to_string();
            assert!(["--auth", "--tls-certificate", "--insecure"].iter().all(|flag| said.contains(flag)), "{said}");
            for text in ["auth: true\n", "insecure: true\n", "tls: {certificate: c.pem, key: k.pem}\n"] {
                file(text).unwrap().admit(&addresses(public)).unwrap();
            }
        }
        let both = ["127.0.0.1:1".parse().unwrap(), "10.0.0.1:1".parse().unwrap()];
        assert!(bare.admit(&both).is_err());
    }

    #[test]
    fn passwords_stay_out_of_what_people_see() {
        let said = refusal("storage: 'postgres://me:secret@db/app?password=secret'\n");
        assert!(said.contains("storage:") && said.contains("sequence") && !said.contains("secret"), "{said}");
        for text in [
            "postgres://me:secret@db/app\n",
            "storage: host=db user=me password=secret\n",
            "storage: [host=db password=secret]\n",
            "storage: me:secret@db/app\n",
            "storage: ['me:se\"cret://secret']\n",
            "storage: {host=db password=secret: 1}\n",
            "storage: [{name: a, dsn: [host=db password=secret]}]\n",
            "storage: [{name: a, dsn: a.db, affinity: host=db password=secret}]\n",
            "auth: me:secret@db/app\n",
            "listen: host=db password=secret\n",
            "limits: {connections: 'me:secret@db/app'}\n",
            "shutdown-timeout: \"it's 'me:secret@db/app'\"\n",
            "log: {format: host=db password=secret}\n",
            "log: {filter: host=db password=secret}\n",
        ] {
            let said = refusal(text);
            assert!(!said.contains("secret") && said.contains("tenure.yaml: "), "{text}: {said}");
        }
        assert!(refusal("auth: maybe\nlisten: nowhere\n").contains("at line 1"));
        assert!(refusal("listen: nowhere\n").contains("listen: the value is not host:port"));
    }

    #[test]
    fn the_example_names_every_key_and_says_the_defaults() {
        let text = include_str!("../example.yaml");
        let (example, defaults) = (file(text).unwrap(), file("").unwrap());
        assert_eq!((example.listen, example.options), (defaults.listen, defaults.options));
        assert_eq!(format!("{:?}", example.transport), format!("{:?}", defaults.transport));
        assert_eq!((example.log_filter, example.log_format), (defaults.log_filter, defaults.log_format));
        for arg in Serve::augment_args(clap::Command::new("serve")).get_arguments() {
            let name = arg.get_long().unwrap();
            let key = ["tls-", "limit-", "log-"].iter().find_map(|group| name.strip_prefix(group)).unwrap_or(name);
            let known = ["check", "config", "dsn", "log", "test-hooks"].contains(&name);
            assert!(known || text.contains(&format!("{key}:")), "{key}");
        }
    }
}
