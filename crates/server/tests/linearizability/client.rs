//! A real server process on a database of its own, a connection to it, and its clock.
//!
//! Invariants: the process does not outlive its `Server`; the clock only goes forward, by one client at a time, and
//! every time it was moved is remembered, because it ends the leases of all queues.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::history::{Answer, Call, Operation, Time};

/// How long leases last, on the server's clock: longer than any run.
pub(crate) const LEASE: &str = "10m";
/// How far the clock is moved: past the end of them.
const JUMP: Duration = Duration::from_secs(11 * 60);
/// No call takes longer.
const LONGEST: Duration = Duration::from_secs(60);

/// A running server.
pub(crate) struct Server {
    child: Child,
    /// Held, so that the server never writes to a reader who has gone.
    _stdout: BufReader<ChildStdout>,
    /// Removed at the end.
    _folder: TempDir,
    address: SocketAddr,
    began: Instant,
    jumps: Mutex<u32>,
    expiries: Mutex<Vec<Operation>>,
    /// Whether nobody leases while the clock is moved.
    quiet: bool,
    /// Whoever leases holds this to read.
    pub(crate) leasing: RwLock<()>,
}

/// The folder for database files: the one in memory that `cargo xtask test` names, because checkpoints wait for the disk.
fn files() -> std::path::PathBuf {
    std::env::var_os("TENURE_TEST_FILES").map_or_else(std::env::temp_dir, Into::into)
}

impl Server {
    pub(crate) fn on_sqlite() -> Self {
        let folder = tempfile::tempdir_in(files()).unwrap();
        // Nobody pulls the plug here, and the PostgreSQL of tests does not wait for the disk either.
        let dsn = format!("sqlite:{}?durability=crash_only", folder.path().join("tenure.db").display());
        Self::start(&dsn, folder, true)
    }

    /// In a schema of its own of the server that `cargo xtask test` starts.
    pub(crate) fn on_postgres() -> Self {
        let postgres = std::env::var("TENURE_TEST_POSTGRES").expect(
            "TENURE_TEST_POSTGRES is not set: run `cargo xtask test tenure-server`, which starts a throw-away server",
        );
        let dsn = format!("{postgres}?schema=linearizability_{}&pool_size=10", std::process::id());
        Self::start(&dsn, tempfile::tempdir_in(files()).unwrap(), false)
    }

    fn start(dsn: &str, folder: TempDir, quiet: bool) -> Self {
        let log = folder.path().join("log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--dsn", dsn, "--test-hooks"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let Some(address) = line.trim().strip_prefix("listening on http://").and_then(|at| at.parse().ok()) else {
            child.kill().ok();
            child.wait().ok();
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            panic!("the server said '{line}' instead of where it listens; its log:\n{log}")
        };
        Server {
            child,
            _stdout: stdout,
            _folder: folder,
            address,
            began: Instant::now(),
            jumps: Mutex::new(0),
            expiries: Mutex::default(),
            quiet,
            leasing: RwLock::new(()),
        }
    }

    pub(crate) fn connect(&self) -> Connection {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LONGEST)).unwrap();
        Connection(BufReader::new(stream))
    }

    /// The time of the history.
    pub(crate) fn now(&self) -> Time {
        Time::try_from(self.began.elapsed().as_nanos()).unwrap()
    }

    /// Ends all leases of all queues.
    pub(crate) fn expire(&self, connection: &mut Connection, queue: &str) {
        let mut jumps = self.jumps.lock().unwrap();
        *jumps += 1;
        if self.quiet {
            let _nobody_leases = self.leasing.write().unwrap();
            let began = self.now();
            set_clock(connection, queue, *jumps);
            self.expired(began, self.now());
            return;
        }
        let began = self.now();
        set_clock(connection, queue, *jumps);
        let set = self.now();
        // A lease that was on its way may still be granted as of the old time, and then outlives what was just done.
        // Those have all arrived when nobody leases, and are met when it is done again.
        drop(self.leasing.write().unwrap());
        set_clock(connection, queue, *jumps);
        self.expired(began, set);
    }

    fn expired(&self, began: Time, set: Time) {
        let call = Call::Expire { set };
        let operation = Operation { client: "clock".to_owned(), began, ended: self.now(), call, answer: Answer::Done };
        self.expiries.lock().unwrap().push(operation);
    }

    /// All times the clock was moved since `began`.
    pub(crate) fn expiries(&self, began: Time) -> Vec<Operation> {
        // Who is just moving it must first be done.
        drop(self.jumps.lock().unwrap());
        self.expiries.lock().unwrap().iter().filter(|expiry| expiry.ended >= began).cloned().collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Sets the clock so many jumps ahead of ours. A call that has that as a side effect does what is then due first.
fn set_clock(connection: &mut Connection, queue: &str, jumps: u32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + JUMP * jumps;
    let header = format!("x-test-now: {}\r\n", now.as_nanos());
    let (code, body) = connection.ask("queue.stats", &header, &json!({ "queue_name": queue })).unwrap();
    assert_eq!(code, 200, "{queue}: the clock could not be set: {body}");
}

/// A connection that is used again and again.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Calls an RPC: its status and its body.
    pub(crate) fn call(&mut self, rpc: &str, body: &Value) -> io::Result<(u16, Value)> {
        self.ask(rpc, "", body)
    }

    fn ask(&mut self, rpc: &str, header: &str, body: &Value) -> io::Result<(u16, Value)> {
        let body = body.to_string();
        let length = body.len();
        let head = format!("POST /v1/{rpc} HTTP/1.1\r\nhost: tenure\r\ncontent-type: application/json\r\n");
        let request = format!("{head}{header}content-length: {length}\r\n\r\n{body}");
        self.0.get_mut().write_all(request.as_bytes())?;
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("this is not HTTP: '{first}'")))?;
        let mut length = 0;
        loop {
            let line = self.line()?;
            match line.split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse::<usize>().map_err(io::Error::other)?;
                }
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok((status, serde_json::from_slice(&body)?))
    }

    /// A line without its end; the empty one ends the headers.
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}
