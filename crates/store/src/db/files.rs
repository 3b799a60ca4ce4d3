//! Notices that a database file was deleted or replaced while this process has it open.
//!
//! An open file outlives its name: commits then go into a file that nothing can open any more, and were acknowledged until
//! the process ended. Compared are the device and inode behind each name, of the file and of its write-ahead log and that
//! log's index: without its own log a file lacks its last commits, and without a shared index two processes write over each
//! other. A check is three calls of `stat` (1.5 µs each, measured alone), once for a read and twice for a
//! write.

use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};

/// What stays the same while a name leads to the same file.
type Identity = (u64, u64);

/// The files of an open database, as they were when it was opened.
pub(crate) struct Files {
    path: PathBuf,
    opened: Vec<(PathBuf, Identity)>,
}

impl Files {
    /// Takes note of the files of a database that has just been opened.
    pub(crate) fn of(path: &Path) -> Self {
        // Absolute, because the process may change its folder; SQLite names the log after the file behind a symbolic link.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        let beside = |suffix: &str| {
            let mut name = real.clone().into_os_string();
            name.push(suffix);
            PathBuf::from(name)
        };
        let names = [path.clone(), beside("-wal"), beside("-shm")];
        let opened = names.into_iter().filter_map(|name| identity(&name).map(|identity| (name, identity))).collect();
        Files { path, opened }
    }

    /// Refuses to go on when a name does not lead to the file that is open.
    pub(crate) fn check(&self) -> Result<()> {
        match self.opened.iter().find(|(name, opened)| identity(name).as_ref() != Some(opened)) {
            None => Ok(()),
            Some((name, _)) => Err(self.gone(name)),
        }
    }

    fn gone(&self, name: &Path) -> Error {
        let what = if name.exists() { "replaced" } else { "deleted" };
        let message = format!(
            "{} was {what} while this process had the database {} open, so nothing is acknowledged any more: stop every \
             process that uses it, put the right file in its place, and start again",
            name.display(),
            self.path.display()
        );
        Error::new(Kind::FileReplaced, message)
    }
}

#[cfg(unix)]
fn identity(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt as _;
    let file = std::fs::metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// Elsewhere only the absence of a file is noticed: an open file can neither be deleted nor replaced on Windows.
#[cfg(not(unix))]
fn identity(path: &Path) -> Option<Identity> {
    path.exists().then_some((0, 0))
}
