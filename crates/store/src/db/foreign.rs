//! A SQLite file that somebody else's program made, and that is only read here.
//!
//! Invariants: the file is never written; it may be in use, and everything is read as it was when the first statement
//! ran.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::sqlite::values;
use crate::error::{Error, Kind, Result};
use crate::value::{Row, Value};

/// How long to wait while the file's own program changes what readers need.
const BUSY: Duration = Duration::from_secs(10);

/// An open file.
pub(crate) struct Foreign {
    file: Arc<Mutex<Opened>>,
}

/// The same on a thread that may wait for the disk.
pub(crate) struct Opened {
    connection: Connection,
    path: PathBuf,
}

impl Foreign {
    /// Opens a file that must be there.
    pub(crate) async fn open(path: &Path) -> Result<Self> {
        let path = path.to_owned();
        let opened = blocking(move || Opened::new(path)).await?;
        Ok(Foreign { file: Arc::new(Mutex::new(opened)) })
    }

    /// Runs a job that reads.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Opened) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let file = self.file.clone();
        blocking(move || {
            let file = file.lock().unwrap_or_else(PoisonError::into_inner);
            job(&file)
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(job: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let task = tokio::task::spawn_blocking(job);
    task.await.map_err(|error| Error::new(Kind::Closed, "the thread that reads the file died").with_source(error))?
}

impl Opened {
    fn new(path: PathBuf) -> Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let failed = |error: rusqlite::Error| refused(&path, error);
        let connection = Connection::open_with_flags(&path, flags).map_err(failed)?;
        connection.busy_timeout(BUSY).map_err(failed)?;
        // One transaction for as long as it is open: whatever is read belongs together.
        connection.execute_batch("begin").map_err(failed)?;
        Ok(Opened { connection, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs a statement and returns its rows.
    pub(crate) fn query(&self, text: &str, params: &[Value]) -> Result<Vec<Row>> {
        let failed = |error: rusqlite::Error| refused(&self.path, error);
        let mut statement = self.connection.prepare_cached(text).map_err(failed)?;
        let width = statement.column_count();
        let mut answer = statement.query(rusqlite::params_from_iter(params)).map_err(failed)?;
        let mut rows = Vec::new();
        while let Some(row) = answer.next().map_err(failed)? {
            rows.push(values(row, width)?);
        }
        Ok(rows)
    }
}

fn refused(path: &Path, error: rusqlite::Error) -> Error {
    let (kind, advice) = match error.sqlite_error_code() {
        Some(ErrorCode::CannotOpen) => (
            Kind::DatabaseMissing,
            "it cannot be opened: does it exist, and may it be read? (In WAL mode its folder must be writable too.)",
        ),
        Some(ErrorCode::NotADatabase) => (Kind::Corrupt, "it is not a SQLite database"),
        Some(ErrorCode::DatabaseCorrupt) => (Kind::Corrupt, "it is damaged: restore a backup"),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (Kind::Contended, "another process is writing: try again")
        }
        Some(ErrorCode::PermissionDenied) => (Kind::AccessDenied, "it may not be read: check its permissions"),
        Some(ErrorCode::SystemIoFailure | ErrorCode::OutOfMemory) => (Kind::Unavailable, "it could not be read"),
        _ => (Kind::Database, "SQLite refused"),
    };
    Error::new(kind, format!("the file {}: {advice} ({error})", path.display())).with_source(error)
}
