//! How a SQLite file is opened and closed: flags, pragmas, and the last checkpoint.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::{BUSY, error_of};
use crate::dsn::{Durability, FileDsn};
use crate::error::{Error, Kind, Result};

/// How long closing waits for other processes that read the write-ahead log.
const CLOSING: Duration = Duration::from_secs(2);

/// Opens a connection; the one that writes creates the file when it is missing.
pub(super) fn connection(dsn: &FileDsn, writes: bool) -> Result<Connection> {
    let path = dsn.path.as_deref().unwrap_or(Path::new(":memory:"));
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if writes {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let failed = |error: rusqlite::Error| {
        let kind = match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::ReadOnly) => Kind::ReadOnly,
            Some(rusqlite::ErrorCode::NotADatabase) => Kind::Corrupt,
            Some(rusqlite::ErrorCode::CannotOpen) => Kind::DatabaseMissing,
            _ => Kind::Unavailable,
        };
        let advice = match kind {
            Kind::ReadOnly => "the file or its folder cannot be written: check their permissions",
            Kind::Corrupt => "the file is not a SQLite database",
            Kind::DatabaseMissing => "the file cannot be opened: does its folder exist, and may it be written?",
            _ => "the file cannot be opened",
        };
        Error::new(kind, format!("cannot open the SQLite database {}: {advice}", path.display())).with_source(error)
    };
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    if connection.is_readonly(rusqlite::MAIN_DB).map_err(failed)? {
        // SQLite opens such a file without a word, and refuses the first write.
        return Err(failed(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY),
            None,
        )));
    }
    connection.busy_timeout(BUSY).map_err(failed)?;
    connection.set_prepared_statement_cache_capacity(256);
    let synchronous = match dsn.durability {
        Durability::Full => "full",
        Durability::CrashOnly => "normal",
    };
    if writes {
        connection.pragma_update(None, "journal_mode", "wal").map_err(failed)?;
        // A write of nothing, so that a file that cannot be written is refused here and not at the first enqueue.
        connection.execute_batch("begin immediate; commit").map_err(failed)?;
        // Fewer, larger checkpoints: the default of 1000 pages makes one every few milliseconds under load.
        connection.pragma_update(None, "wal_autocheckpoint", 4000).map_err(failed)?;
    }
    connection.pragma_update(None, "synchronous", synchronous).map_err(failed)?;
    connection.pragma_update(None, "cache_size", -16_000).map_err(failed)?;
    Ok(connection)
}

/// Moves the write-ahead log into the file and empties it. Where another process reads the log at this moment, it stays
/// beside the file, which is complete only together with it.
pub(super) fn checkpoint(connection: &Connection) -> Result<()> {
    connection.busy_timeout(CLOSING).map_err(error_of)?;
    let checkpoint = "pragma wal_checkpoint(truncate)";
    match connection.query_row(checkpoint, [], |row| row.get::<_, i64>(0)).map_err(error_of)? {
        0 => Ok(()),
        _ => Err(Error::new(
            Kind::Contended,
            "another process uses the SQLite file, so the newest writes are in its -wal file: keep the two together",
        )),
    }
}
