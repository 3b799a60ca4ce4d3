//! What can go wrong, by name; every sentence says what to do.

/// The library's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The library's error.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// use tenure::{Admin, Config, Error};
/// let admin = Admin::new(&Config::from_dsn(":memory:")).await?;
/// admin.install().await?;
/// let error = admin.get_queue("mail").await.unwrap_err();
/// assert!(matches!(&error, Error::QueueNotFound { name } if name == "mail"));
/// assert_eq!(error.to_string(), "there is no queue named 'mail': create it first");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The DSN names a database that this program cannot open. Never contains a password.
    #[error("{0}")]
    UnsupportedDsn(String),
    /// There is no such queue.
    #[error("there is no queue named '{name}': create it first")]
    QueueNotFound {
        /// Its name, or its number.
        name: String,
    },
    /// The name is taken.
    #[error("there is already a queue named '{name}': use get_or_create_queue, or another name")]
    QueueAlreadyExists {
        /// The name.
        name: String,
    },
    /// The queue cannot be deleted yet.
    #[error("{reason}")]
    QueueInUse {
        /// Its name.
        name: String,
        /// What is still there, and what to do.
        reason: String,
    },
    /// There is no live message with this id.
    #[error("there is no live message {id}: it was completed, died, or never was; look in the archive")]
    MessageNotFound {
        /// The id.
        id: i64,
    },
    /// There is no such worker.
    #[error("there is no worker {id}: register first")]
    WorkerNotFound {
        /// The number.
        id: i64,
    },
    /// This worker was stopped: by itself, by an operator, or by a new incarnation of the same name.
    #[error("worker {id} was stopped, and its leases belong to others now: create a new one")]
    WorkerStopped {
        /// The number.
        id: i64,
    },
    /// A worker cannot go from one state to another.
    #[error("a worker cannot go from {from} to {to}: {reason}")]
    InvalidStateTransition {
        /// What it is.
        from: String,
        /// What it was told to be.
        to: String,
        /// Why not.
        reason: String,
    },
    /// An argument cannot be right; nothing was changed.
    #[error("{reason}")]
    ValidationFailed {
        /// What is wrong with it.
        reason: String,
    },
    /// A payload is larger than the configuration allows; nothing was stored.
    #[error(
        "payload {index} has {actual_bytes} bytes, and at most {max_bytes} are allowed: store it elsewhere and send its address, or raise max_payload_bytes"
    )]
    PayloadTooLarge {
        /// Which one of the batch, from 0.
        index: usize,
        /// Its size.
        actual_bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// A payload could not be written as JSON, or read as what was asked for.
    #[error("the payload of message {index} does not fit: {source}")]
    Serialization {
        /// Which one of the batch, or the message's id.
        index: i64,
        /// What the JSON library says.
        source: serde_json::Error,
    },
    /// The lease is no longer held: another consumer may be working on the message. Roll back.
    #[error("the lease on message {id} was lost: roll back, another consumer may be working on it")]
    LeaseLost {
        /// The message.
        id: i64,
    },
    /// A setting cannot be right.
    #[error("setting '{field}': {message}")]
    InvalidConfig {
        /// Which one.
        field: String,
        /// What is wrong with it.
        message: String,
    },
    /// A setting is missing.
    #[error("setting '{field}' is missing")]
    MissingConfig {
        /// Which one.
        field: String,
    },
    /// A table or column is missing.
    #[error("{0}")]
    TableNotFound(String),
    /// Rows refer to what is gone.
    #[error("{message}")]
    IntegrityViolation {
        /// Which rows.
        message: String,
    },
    /// The tables are not there yet, are too old, or were made by a newer version.
    #[error("{0}")]
    Migration(String),
    /// Anything else that the database said: its `kind()` is a [`Kind`](crate::Kind).
    #[error(transparent)]
    Store(tenure_store::Error),
}

impl Error {
    /// Whether the same call may succeed later without a change by the caller.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Store(error) if error.is_retryable())
    }

    /// What the kernel said about a queue: that it is not there, or the dead queue in its settings, by name; or something else.
    pub(crate) fn of_queue(name: &str, error: tenure_store::Error) -> Self {
        match error.kind() {
            tenure_store::Kind::NotFound => Error::QueueNotFound { name: error.name().unwrap_or(name).to_owned() },
            _ => error.into(),
        }
    }

    /// What the kernel said about a worker: that it was stopped, by number, or something else.
    pub(crate) fn of_worker(id: i64, error: tenure_store::Error) -> Self {
        match error.kind() {
            tenure_store::Kind::WorkerStopped => Error::WorkerStopped { id },
            _ => error.into(),
        }
    }

    pub(crate) fn invalid(reason: impl Into<String>) -> Self {
        Error::ValidationFailed { reason: reason.into() }
    }
}

impl From<tenure_store::Error> for Error {
    fn from(error: tenure_store::Error) -> Self {
        use tenure_store::Kind;
        match error.kind() {
            Kind::InvalidDsn | Kind::Unsupported => Error::UnsupportedDsn(error.to_string()),
            Kind::InvalidInput => Error::invalid(error.to_string()),
            Kind::Schema | Kind::SchemaNewer => Error::Migration(error.to_string()),
            Kind::Damaged => Error::TableNotFound(error.to_string()),
            Kind::Orphans => Error::IntegrityViolation { message: error.to_string() },
            _ => Error::Store(error),
        }
    }
}
