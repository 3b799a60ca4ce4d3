//! Runs cargo and other programs.

use std::path::PathBuf;
use std::process::Command;

use crate::memory::MemoryFolder;
pub(crate) use tenure_cluster::Result;

pub(crate) struct Cargo(Command);

impl Cargo {
    pub(crate) fn new(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO"));
        command.args(args).current_dir(root());
        Cargo(command)
    }

    pub(crate) fn test(args: &[&str], rest: &[String]) -> Self {
        Cargo::new(&["test", "--quiet", "--no-fail-fast"]).args(args).args(&["--"]).args(rest)
    }

    pub(crate) fn args(mut self, args: &[impl AsRef<std::ffi::OsStr>]) -> Self {
        self.0.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.0.env(name, value);
        self
    }

    /// Names the folder in memory in which tests put database files; none: they use the disk.
    pub(crate) fn files(mut self, folder: Option<&MemoryFolder>) -> Self {
        if let Some(folder) = folder {
            self.0.env("TENURE_TEST_FILES", folder.path());
        }
        self
    }

    pub(crate) fn run(mut self) -> Result<()> {
        let shown = format!("{:?}", self.0.get_args().collect::<Vec<_>>().join(std::ffi::OsStr::new(" ")));
        println!("cargo {}", shown.trim_matches('"'));
        let status = self.0.status()?;
        if status.success() { Ok(()) } else { Err(format!("cargo failed: {status}").into()) }
    }
}

pub(crate) fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|error| format!("{command:?} cannot be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed: {status}").into()) }
}
