//! A folder in memory for database files of tests: disks of shared machines stall for seconds.

use std::path::{Path, PathBuf};
use std::process::Command;

const MEMORY: &str = "/dev/shm";
/// All files of a run of the tests together need less. Containers often have 64 MB.
const LEAST_FREE_KIB: u64 = 2 << 20;

/// Removed when it is dropped.
pub(crate) struct MemoryFolder(PathBuf);

impl MemoryFolder {
    /// None where the machine has no such file system, or too little room in it.
    pub(crate) fn new() -> Option<Self> {
        let output = Command::new("df").args(["-Pk", MEMORY]).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let line = text.lines().nth(1)?;
        let mut columns = line.split_whitespace().rev();
        let (mounted, free) = (columns.next()?, columns.nth(1)?.parse::<u64>().ok()?);
        if mounted != MEMORY || free < LEAST_FREE_KIB {
            return None;
        }
        let folder = Path::new(MEMORY).join(format!("tenure-{}", std::process::id()));
        std::fs::create_dir(&folder).ok()?;
        Some(MemoryFolder(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for MemoryFolder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
