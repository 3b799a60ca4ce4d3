//! How to connect.

use std::time::Duration;

use tenure_store::{Error, Kind, Result};

/// What to do about the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MigrationPolicy {
    /// Bring them up to date; safe for any number of processes at once.
    #[default]
    Apply,
    /// Only check that they are up to date: for programs whose user may not create tables.
    VerifyOnly,
}

/// Where a provider keeps its orchestrations.
///
/// ```
/// use std::time::Duration;
/// use tenure_duroxide::{MigrationPolicy, ProviderConfig};
///
/// let config = ProviderConfig {
///     schema: Some("orders".to_owned()),
///     pool_size: Some(20),
///     statement_timeout: Some(Duration::from_secs(10)),
///     migrations: MigrationPolicy::VerifyOnly,
///     ..ProviderConfig::new("postgres://app@db.example/app?sslmode=require")
/// };
/// assert_eq!(config.cache_bytes, 64 * 1024 * 1024);
/// ```
#[derive(Clone)]
pub struct ProviderConfig {
    /// `postgres://…`, `sqlite:path` or `sqlite::memory:`.
    pub dsn: String,
    /// The PostgreSQL schema of the tables; none: as the DSN says, else `tenure`.
    pub schema: Option<String>,
    /// Connections to PostgreSQL; none: as the DSN says, else 10. One more listens.
    pub pool_size: Option<u32>,
    /// When PostgreSQL gives up a statement, in whole seconds; none: as the DSN says, else 30 seconds.
    pub statement_timeout: Option<Duration>,
    /// What to do about the tables.
    pub migrations: MigrationPolicy,
    /// How much memory long histories may take, so that they are not read from the start again and again.
    pub cache_bytes: usize,
}

impl std::fmt::Debug for ProviderConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The DSN may hold a password.
        f.debug_struct("ProviderConfig")
            .field("schema", &self.schema)
            .field("pool_size", &self.pool_size)
            .field("statement_timeout", &self.statement_timeout)
            .field("migrations", &self.migrations)
            .field("cache_bytes", &self.cache_bytes)
            .finish_non_exhaustive()
    }
}

impl ProviderConfig {
    /// Defaults for a database.
    pub fn new(dsn: impl Into<String>) -> Self {
        ProviderConfig {
            dsn: dsn.into(),
            schema: None,
            pool_size: None,
            statement_timeout: None,
            migrations: MigrationPolicy::Apply,
            cache_bytes: 64 * 1024 * 1024,
        }
    }

    /// The DSN with those settings that travel in it.
    pub(crate) fn full_dsn(&self) -> Result<String> {
        let invalid = |message: &str| Err(Error::new(Kind::InvalidInput, message));
        let seconds = self.statement_timeout.map(|timeout| timeout.as_secs());
        if seconds == Some(0) {
            return invalid("statement_timeout must be at least one second");
        }
        let options = [
            ("schema", self.schema.clone()),
            ("pool_size", self.pool_size.map(|size| size.to_string())),
            ("statement_timeout", seconds.map(|seconds| seconds.to_string())),
        ];
        let given: Vec<_> = options.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let backend = tenure_store::dsn_backend(&self.dsn);
        let postgres = backend.map_or(true, |backend| backend == tenure_store::Backend::Postgres);
        match given.first() {
            Some((name, _)) if !postgres => {
                invalid(&format!("{name} is a setting of PostgreSQL: leave it out for an embedded database"))
            }
            _ => Ok(tenure_store::dsn_with(&self.dsn, &given)),
        }
    }
}
