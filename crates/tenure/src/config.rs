//! Settings: from a DSN, from code, from the environment, from a file. Every one is honoured and checked.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use tenure_store::Backend;

use crate::error::{Error, Result};
use crate::payload::ValidationConfig;

/// How to connect, and the defaults of queues and consumers.
///
/// ```
/// use std::time::Duration;
/// use tenure::Config;
/// let config = Config { default_max_batch_size: 50, ..Config::from_dsn("sqlite:jobs.db") }
///     .with_lock_time(Duration::from_secs(60));
/// assert_eq!(config.default_lock_time_seconds, 60);
/// config.validate().unwrap();
/// ```
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the database is: `postgres://…`, `host=… dbname=…`, `sqlite:path`, `:memory:`, `turso:///path`.
    pub dsn: String,
    /// The PostgreSQL schema of the tables; none: as the DSN says, else `tenure`.
    #[serde(default)]
    pub schema: Option<String>,
    /// Connections to PostgreSQL; none: as the DSN says, else the kernel's default.
    #[serde(default)]
    pub max_connections: Option<u32>,
    /// How long a connection to PostgreSQL may take; none: as the DSN says, else 4.
    #[serde(default)]
    pub connection_timeout_seconds: Option<u32>,
    /// How many messages [`Consumer::dequeue`](crate::Consumer::dequeue) leases at most.
    #[serde(default = "defaults::batch")]
    pub default_max_batch_size: usize,
    /// The lease of queues created with this configuration. A consumer leases for as long as its queue says.
    #[serde(default = "defaults::lock")]
    pub default_lock_time_seconds: u32,
    /// How often a message of a queue created with this configuration is delivered before it is dead.
    #[serde(default = "defaults::reads")]
    pub max_read_ct: i32,
    /// How often a worker says that it lives.
    #[serde(default = "defaults::heartbeat")]
    pub heartbeat_interval_seconds: u32,
    /// What payloads must look like.
    #[serde(default)]
    pub validation_config: ValidationConfig,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The DSN without its password and options.
        f.debug_struct("Config")
            .field("dsn", &tenure_store::dsn_shown(&self.dsn))
            .field("schema", &self.schema)
            .field("max_connections", &self.max_connections)
            .field("connection_timeout_seconds", &self.connection_timeout_seconds)
            .field("default_max_batch_size", &self.default_max_batch_size)
            .field("default_lock_time_seconds", &self.default_lock_time_seconds)
            .field("max_read_ct", &self.max_read_ct)
            .field("heartbeat_interval_seconds", &self.heartbeat_interval_seconds)
            .field("validation_config", &self.validation_config)
            .finish()
    }
}

mod defaults {
    pub(super) fn batch() -> usize {
        100
    }
    pub(super) fn lock() -> u32 {
        30
    }
    pub(super) fn reads() -> i32 {
        5
    }
    pub(super) fn heartbeat() -> u32 {
        5
    }
}

impl Config {
    /// Defaults for a database.
    pub fn from_dsn(dsn: impl Into<String>) -> Self {
        Config {
            dsn: dsn.into(),
            schema: None,
            max_connections: None,
            connection_timeout_seconds: None,
            default_max_batch_size: defaults::batch(),
            default_lock_time_seconds: defaults::lock(),
            max_read_ct: defaults::reads(),
            heartbeat_interval_seconds: defaults::heartbeat(),
            validation_config: ValidationConfig::default(),
        }
    }

    /// From `TENURE_DSN`, and where they are set `TENURE_SCHEMA`, `TENURE_MAX_CONNECTIONS`,
    /// `TENURE_CONNECTION_TIMEOUT`, `TENURE_DEFAULT_BATCH_SIZE`, `TENURE_DEFAULT_LOCK_TIME`, `TENURE_MAX_READ_CT`,
    /// `TENURE_HEARTBEAT_INTERVAL` and `TENURE_MAX_PAYLOAD_BYTES`.
    ///
    /// # Errors
    /// `MissingConfig` without `TENURE_DSN`, `InvalidConfig` for a value that cannot be read.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// The same from any source of variables.
    ///
    /// ```
    /// use tenure::Config;
    /// let variables = |name: &str| match name {
    ///     "TENURE_DSN" => Some("sqlite:jobs.db".to_owned()),
    ///     "TENURE_MAX_READ_CT" => Some("3".to_owned()),
    ///     _ => None,
    /// };
    /// assert_eq!(Config::from_variables(variables).unwrap().max_read_ct, 3);
    /// assert_eq!(Config::from_variables(|_| None).unwrap_err().to_string(), "setting 'TENURE_DSN' is missing");
    /// ```
    ///
    /// # Errors
    /// As [`from_env`](Config::from_env).
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        fn number<T: std::str::FromStr>(name: &str, text: Option<String>) -> Result<Option<T>> {
            let Some(text) = text else { return Ok(None) };
            let number = text.trim().parse().map_err(|_| Error::InvalidConfig {
                field: name.to_owned(),
                message: format!("'{text}' is not a number that fits"),
            })?;
            Ok(Some(number))
        }
        let dsn = variable("TENURE_DSN").ok_or_else(|| Error::MissingConfig { field: "TENURE_DSN".to_owned() })?;
        let defaults = Config::from_dsn(dsn);
        macro_rules! read {
            ($name:literal) => {
                number($name, variable($name))?
            };
        }
        let config = Config {
            schema: variable("TENURE_SCHEMA"),
            max_connections: read!("TENURE_MAX_CONNECTIONS"),
            connection_timeout_seconds: read!("TENURE_CONNECTION_TIMEOUT"),
            default_max_batch_size: read!("TENURE_DEFAULT_BATCH_SIZE").unwrap_or(defaults.default_max_batch_size),
            default_lock_time_seconds: read!("TENURE_DEFAULT_LOCK_TIME").unwrap_or(defaults.default_lock_time_seconds),
            max_read_ct: read!("TENURE_MAX_READ_CT").unwrap_or(defaults.max_read_ct),
            heartbeat_interval_seconds: read!("TENURE_HEARTBEAT_INTERVAL")
                .unwrap_or(defaults.heartbeat_interval_seconds),
            validation_config: ValidationConfig {
                max_payload_bytes: read!("TENURE_MAX_PAYLOAD_BYTES")
                    .unwrap_or(defaults.validation_config.max_payload_bytes),
                ..defaults.validation_config.clone()
            },
            ..defaults
        };
        config.validate()?;
        Ok(config)
    }

    /// From a YAML file with the names of this struct's fields.
    ///
    /// # Errors
    /// `InvalidConfig` when the file cannot be read, has an unknown name, or a value that cannot be right. It says where, and repeats
    /// no value of the file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let failed = |message: String| Error::InvalidConfig { field: path.display().to_string(), message };
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let config: Config = serde_yaml_ng::from_str(&text)
            .map_err(|error| failed(tenure_store::config_error_shown(&error.to_string())))?;
        config.validate()?;
        Ok(config)
    }

    /// Sets the PostgreSQL schema.
    #[must_use]
    pub fn with_schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Sets the number of connections to PostgreSQL.
    #[must_use]
    pub fn with_max_connections(mut self, connections: u32) -> Self {
        self.max_connections = Some(connections);
        self
    }

    /// Sets the lease of queues that are created with this configuration, in whole seconds.
    #[must_use]
    pub fn with_lock_time(mut self, lock: Duration) -> Self {
        self.default_lock_time_seconds = u32::try_from(lock.as_secs()).unwrap_or(u32::MAX);
        self
    }

    /// Sets how often a message is delivered before it is dead.
    #[must_use]
    pub fn with_max_read_ct(mut self, reads: i32) -> Self {
        self.max_read_ct = reads;
        self
    }

    /// Checks every setting; connecting does the same.
    ///
    /// # Errors
    /// `InvalidConfig` with the name of the first setting that cannot be right.
    pub fn validate(&self) -> Result<()> {
        let wrong = |field: &str, message: &str| {
            Err(Error::InvalidConfig { field: field.to_owned(), message: message.to_owned() })
        };
        // A DSN that cannot be read is refused by `connect`, which says why.
        let postgres = tenure_store::dsn_backend(&self.dsn).map_or(true, |backend| backend == Backend::Postgres);
        match () {
            () if self.default_max_batch_size == 0 => wrong("default_max_batch_size", "must be at least 1"),
            () if self.default_lock_time_seconds == 0 => wrong("default_lock_time_seconds", "must be at least 1"),
            () if self.max_read_ct < 1 => wrong("max_read_ct", "must be at least 1"),
            () if self.heartbeat_interval_seconds == 0 => wrong("heartbeat_interval_seconds", "must be at least 1"),
            () if self.max_connections == Some(0) => wrong("max_connections", "must be at least 1"),
            () if self.connection_timeout_seconds == Some(0) => {
                wrong("connection_timeout_seconds", "must be at least 1")
            }
            () if self.validation_config.max_payload_bytes == 0 => wrong("max_payload_bytes", "must be at least 1"),
            () if !postgres && self.schema.is_some() => wrong("schema", "only PostgreSQL has schemas"),
            () if !postgres && self.max_connections.is_some() => {
                wrong("max_connections", "an embedded database has no connections to limit")
            }
            () if !postgres && self.connection_timeout_seconds.is_some() => {
                wrong("connection_timeout_seconds", "an embedded database is not connected to")
            }
            () => Ok(()),
        }
    }

    /// The DSN with those settings that travel in it.
    pub(crate) fn full_dsn(&self) -> String {
        let options = [
            ("schema", self.schema.clone()),
            ("pool_size", self.max_connections.map(|connections| connections.to_string())),
            ("connect_timeout", self.connection_timeout_seconds.map(|seconds| seconds.to_string())),
        ];
        let given: Vec<_> = options.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        tenure_store::dsn_with(&self.dsn, &given)
    }

    pub(crate) fn lock_time(&self) -> Duration {
        Duration::from_secs(self.default_lock_time_seconds.into())
    }

    pub(crate) fn heartbeat_interval(&self) -> Duration {
        Duration::from_secs(self.heartbeat_interval_seconds.into())
    }

    /// The settings of a queue that is created without any of its own.
    pub(crate) fn queue_settings(&self) -> tenure_store::Settings {
        tenure_store::Settings {
            lease: self.lock_time(),
            max_attempts: u32::try_from(self.max_read_ct).ok(),
            ..tenure_store::Settings::default()
        }
    }
}
