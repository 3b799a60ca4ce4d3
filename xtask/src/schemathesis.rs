//! Schemathesis against a server of our own: calls made of the API's description, and answers held against it.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::cargo::{Cargo, Result, root, succeed};

/// The options used here are those of this major version.
const PACKAGE: &str = "schemathesis>=4,<5";

/// What answers are held against. Left out, because the protocol is older than these rules and wins:
/// - `negative_data_rejection`: protobuf's JSON allows null for what is absent and numbers in quotes, which a schema
///   calls wrong, and protobuf ignores fields that it does not know;
/// - `positive_data_acceptance`: what fits the schema is refused all the same when it names a queue, an item or a role
///   that is not there, or a duration that is none;
/// - `unsupported_method`: a wrong method is answered with 400, never with 405;
/// - those about authentication, links and resources: authorisation is off, and there are no links.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// The one call that waits: as its example says, half a minute each time once the queue of the examples exists. So it
/// gets random bodies only, whose time-outs are hardly ever any.
const LEASE: &str = "/v1/queue.lease";
const RUNS: [&[&str]; 2] = [
    // Only RPCs: elsewhere a wrong method is an unknown path, and that is 501.
    &["--include-path-regex", "^/v1/", "--exclude-path", LEASE],
    &["--include-path", LEASE, "--phases", "fuzzing"],
];

/// Seconds that an answer may take.
const PATIENCE: &str = "30";

/// Runs Schemathesis; `rest` is passed on to it and wins over what is said here.
pub(crate) fn run(rest: &[String]) -> Result<()> {
    let folder = root().join("target/schemathesis");
    let schemathesis = install(&folder)?;
    Cargo::new(&["build", "--release", "--package", "tenure-server"]).run()?;
    let log = folder.join("server.log");
    let server = Server::start(&log)?;
    let description = format!("{}/openapi.json", server.address);
    for selection in RUNS {
        let mut command = Command::new(&schemathesis);
        command.args(["run", &description, "--checks", CHECKS, "--max-examples", "50"]);
        command.args(["--request-timeout", PATIENCE]).args(selection).args(rest);
        // Where it keeps what it has found.
        command.current_dir(&folder);
        println!("schemathesis {}", selection.join(" "));
        let status = command.status()?;
        if !status.success() {
            let log = log.display();
            return Err(format!("schemathesis failed: {status}; the reason of an internal error is in {log}").into());
        }
    }
    Ok(())
}

/// The program, in a Python environment of its own: made once, and anew when that did not get to its end.
fn install(folder: &Path) -> Result<PathBuf> {
    let environment = folder.join("venv");
    let program = environment.join("bin/schemathesis");
    if !program.exists() {
        std::fs::create_dir_all(folder)?;
        succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
        let mut pip = Command::new(environment.join("bin/python"));
        succeed(pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE]))?;
    }
    Ok(program)
}

/// A server on a database that nobody else has; both are gone when it is dropped.
struct Server {
    child: Child,
    /// Where it says that it listens, as http://host:port.
    address: String,
    data: PathBuf,
    /// Kept open, so that the server can go on writing.
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    fn start(log: &Path) -> Result<Self> {
        let data = std::env::temp_dir().join(format!("tenure-schemathesis-{}", std::process::id()));
        std::fs::create_dir_all(&data)?;
        let dsn = format!("sqlite:{}", data.join("tenure.db").display());
        let mut command = Command::new(root().join("target/release/tenure"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--dsn", &dsn]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(log)?);
        let mut child = command.spawn()?;
        let mut stdout = BufReader::new(child.stdout.take().ok_or("the server has no output")?);
        let mut line = String::new();
        let read = stdout.read_line(&mut line);
        let mut server = Server { child, address: String::new(), data, _stdout: stdout };
        read?;
        match line.trim_end().strip_prefix("listening on ") {
            Some(address) => server.address = address.to_owned(),
            None => {
                let log = std::fs::read_to_string(log)?;
                return Err(format!("the server said '{}' and not where it listens:\n{log}", line.trim_end()).into());
            }
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself, and then there is nothing to kill.
        self.child.kill().ok();
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.data).ok();
    }
}
