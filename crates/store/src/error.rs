//! One error for the whole kernel: a kind for programs, a sentence for people, the source kept.
//!
//! Invariants: no sentence contains a password, a token or a payload; whether a call may be repeated is decided by
//! the kind and by nothing else; kinds come from codes (SQLSTATE, SQLite result codes), never from message texts.

use std::error::Error as StdError;
use std::fmt;

/// What went wrong, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The caller's arguments cannot be right; nothing was changed.
    InvalidInput,
    /// The connection string cannot be understood.
    InvalidDsn,
    /// The backend exists but is not compiled into this program, or cannot do what was asked.
    Unsupported,
    /// A queue, message, worker or stream of that name or id does not exist.
    NotFound,
    /// The name or id is taken; nothing was changed.
    AlreadyExists,
    /// The thing is in a state that does not allow this step; nothing was changed.
    InvalidState,
    /// The worker was stopped, or was purged after that; it leases nothing.
    WorkerStopped,
    /// The database cannot be reached, is starting, stopping or failing over. Repeat later.
    Unavailable,
    /// The database gave up this transaction (deadlock, serialization failure, lock timeout). Repeat at once.
    Contended,
    /// Too many callers are waiting in this process. Repeat later, or with fewer callers.
    Overloaded,
    /// User or password were refused.
    AccessDenied,
    /// The database named in the DSN does not exist.
    DatabaseMissing,
    /// The database or its file cannot be written.
    ReadOnly,
    /// Another process holds the database file.
    Locked,
    /// The file of an embedded database was deleted, or replaced by another file under its name, while it was open: restart on the
    /// right file. A file that is overwritten in place (`cp backup.db jobs.db`) is the same file, and this is not noticed: stop every
    /// process before, or rename the backup over it.
    FileReplaced,
    /// The tables are missing or damaged: run `install`, or read what `verify` says.
    Schema,
    /// `verify` did not find a table or a column, which its sentence names: run `install`, or restore a backup.
    Damaged,
    /// Rows refer to what is gone: read what `verify` says.
    Orphans,
    /// The tables were made by a newer, incompatible version.
    SchemaNewer,
    /// A stored row does not have the shape that it must have.
    Corrupt,
    /// The store was closed while the call was waiting.
    Closed,
    /// Anything else that the database refused.
    Database,
}

/// The kernel's error.
///
/// ```
/// use tenure_store::{Error, Kind};
/// let error = Error::new(Kind::NotFound, "there is no queue named 'mail': create it first");
/// assert_eq!(error.kind(), Kind::NotFound);
/// assert!(!error.is_retryable());
/// assert_eq!(error.to_string(), "there is no queue named 'mail': create it first");
/// ```
pub struct Error(Box<Repr>);

struct Repr {
    kind: Kind,
    message: String,
    /// The statement may have been committed although its answer never arrived.
    ambiguous: bool,
    /// The name of what is missing.
    name: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kernel's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`, with a sentence that says what to do.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Error(Box::new(Repr { kind, message: message.into(), ambiguous: false, name: None, source: None }))
    }

    /// What PostgreSQL refused a statement with, whatever driver carried it: its SQLSTATE and its sentence.
    ///
    /// ```
    /// use tenure_store::{Error, Kind};
    /// let error = Error::of_postgres("40001", "could not serialize access due to concurrent update");
    /// assert_eq!((error.kind(), error.is_retryable()), (Kind::Contended, true));
    /// ```
    pub fn of_postgres(code: &str, said: &str) -> Self {
        let kind = kind_of_sqlstate(code);
        let message = match kind {
            Kind::Schema => format!("Tenure's tables are missing or old: call `install` first ({said})"),
            _ => format!("PostgreSQL refused: {said} (SQLSTATE {code})"),
        };
        Error::new(kind, message)
    }

    /// Notes the name of what is missing.
    #[must_use]
    pub(crate) fn with_name(mut self, name: &str) -> Self {
        self.0.name = Some(name.to_owned());
        self
    }

    /// Keeps what caused this error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Marks that the change may have happened although its answer was lost.
    #[must_use]
    pub fn ambiguous(mut self) -> Self {
        self.0.ambiguous = true;
        self
    }

    /// What went wrong, for programs.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The name of the queue that was not found: one that the call names, or the dead queue in its settings.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// Whether the same call may succeed later without a change by the caller.
    ///
    /// Every verb of the kernel except an enqueue without a dedupe key can be repeated without harm.
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.kind, Kind::Unavailable | Kind::Contended | Kind::Overloaded)
    }

    /// Whether the change may have been committed although this error was returned.
    pub fn is_ambiguous(&self) -> bool {
        self.0.ambiguous
    }

    /// The same error again, for each caller of a shared transaction.
    pub(crate) fn duplicate(&self) -> Error {
        Error(Box::new(Repr {
            kind: self.0.kind,
            message: self.0.message.clone(),
            ambiguous: self.0.ambiguous,
            name: self.0.name.clone(),
            source: None,
        }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)?;
        match &self.0.source {
            Some(source) => write!(f, " (caused by: {source})"),
            None => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}

/// Bad input, with the sentence that says how to mend it.
pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(Kind::InvalidInput, message)
}

/// The error of a call that ran into a bug of ours. What the panic said is in the process's standard error.
pub(crate) fn panicked() -> Error {
    Error::new(Kind::Database, "Tenure panicked while it carried out the call: this is a bug, please report it")
}

/// The SQLSTATE codes that mean something other than "the database refused".
pub(crate) fn kind_of_sqlstate(code: &str) -> Kind {
    match code {
        // serialization failure, deadlock, lock not available, query cancelled by a timeout
        "40001" | "40P01" | "55P03" | "57014" => Kind::Contended,
        // read-only transaction: a standby that was a primary a moment ago, or will be; idle session timeout
        "25006" | "25P03" => Kind::Unavailable,
        "28000" | "28P01" => Kind::AccessDenied,
        "3D000" => Kind::DatabaseMissing,
        // undefined table, schema, column, function, sequence
        "42P01" | "3F000" | "42703" | "42883" => Kind::Schema,
        "42501" => Kind::AccessDenied,
        "23505" => Kind::AlreadyExists,
        // not-null and foreign-key violations: a row refers to something that is gone
        "23502" | "23503" => Kind::NotFound,
        // data exceptions: what the caller sent cannot be stored
        code if code.starts_with("22") => Kind::InvalidInput,
        // a transaction that was rolled back for whatever other reason
        code if code.starts_with("40") => Kind::Contended,
        // connection exceptions; the server is stopping, starting or recovering; too many connections, out of memory,
        // disk full; errors of the system below the server
        code if ["08", "53", "57P", "58"].iter().any(|class| code.starts_with(class)) => Kind::Unavailable,
        _ => Kind::Database,
    }
}

/// The SQLite primary result codes that mean something other than "the database refused".
#[cfg(any(feature = "sqlite", feature = "turso"))]
pub(crate) fn kind_of_sqlite(code: i32) -> Kind {
    match code & 0xff {
        5 | 6 => Kind::Contended, // busy, locked: another process is writing
        8 => Kind::ReadOnly,
        3 | 23 => Kind::AccessDenied,
        7 | 10 | 13 => Kind::Unavailable, // out of memory, I/O error, disk full
        11 | 26 => Kind::Corrupt,
        14 => Kind::DatabaseMissing,        // cannot open
        18 | 20 | 25 => Kind::InvalidInput, // too big, mismatch, range
        19 => Kind::AlreadyExists,
        _ => Kind::Database,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weather_is_retryable_and_mistakes_are_not() {
        for code in ["40001", "40P01", "55P03", "57P01", "57P03", "53300", "53400", "58030", "08006", "25006"] {
            assert!(Error::new(kind_of_sqlstate(code), "").is_retryable(), "{code}");
        }
        for code in ["23505", "22021", "42P01", "28P01", "3D000", "XX000"] {
            assert!(!Error::new(kind_of_sqlstate(code), "").is_retryable(), "{code}");
        }
    }

    #[test]
    fn debug_shows_the_source_and_display_does_not() {
        let error = Error::new(Kind::Database, "refused").with_source("the reason");
        assert_eq!(error.to_string(), "refused");
        assert_eq!(format!("{error:?}"), "Database: refused (caused by: the reason)");
    }
}
