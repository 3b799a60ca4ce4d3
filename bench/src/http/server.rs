//! The server as a process of its own, and what a process uses.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use crate::Result;

/// Linux counts a process's CPU for others in hundredths of a second.
const TICKS: f64 = 100.0;

/// A running `tenure serve`; killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts the program that was built together with this one.
    pub(crate) fn start(dsn: &str) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name(format!("tenure{}", std::env::consts::EXE_SUFFIX));
        if !program.exists() {
            let shown = program.display();
            return Err(format!("{shown} is missing: run `cargo xtask bench`, which builds the server first").into());
        }
        // As JSON the server does not greet, and the warnings that remain stand out from our own lines.
        let flags = ["serve", "--listen", "127.0.0.1:0", "--log", "warn", "--log-format", "json", "--dsn", dsn];
        let mut child = Command::new(program).args(flags).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            // A line that cannot be read is as good as none.
            BufReader::new(stdout).read_line(&mut line).ok();
        }
        match line.trim().strip_prefix("listening on http://").and_then(|address| address.parse().ok()) {
            Some(address) => Ok(Server { child, address }),
            None => {
                child.kill()?;
                child.wait()?;
                Err(format!("the server said '{}' instead of where it listens", line.trim()).into())
            }
        }
    }

    /// The process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Seconds of CPU that a process has used so far, with all its threads, for itself and in the system.
pub(crate) fn cpu(process: u32) -> Result<f64> {
    let path = format!("/proc/{process}/stat");
    let stat = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    // The second field is the program's name in parentheses, which may hold anything; the 14th and 15th are the times.
    let (_, rest) = stat.rsplit_once(')').ok_or_else(|| format!("{path} has no name in it"))?;
    let mut ticks = 0.0;
    for field in rest.split_whitespace().skip(11).take(2) {
        ticks += field.parse::<f64>()?;
    }
    Ok(ticks / TICKS)
}
