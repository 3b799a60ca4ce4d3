//! Real processes of the `tenure` binary, each on a database that nobody else uses.
//!
//! Invariants: no process outlives the tests; nothing is left in the folder for temporary files. Cases that are
//! independent share a server and keep to queues of their own; those that restart it, stop it or set its clock have
//! one to themselves.

pub(crate) mod api;
pub(crate) mod gate;
pub(crate) mod proto;
pub(crate) mod queue;
pub(crate) mod text;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use api::Api;

/// After this time a test counts as hanging: long, for two busy cores.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A name that nothing else of this run has.
pub(crate) fn unique(what: &str) -> String {
    format!("{what}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Looks again and again until there is something to see.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(started.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The database of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Backend {
    Postgres,
    Sqlite,
}

/// The PostgreSQL server that `cargo xtask test` starts.
pub(crate) fn postgres_dsn() -> String {
    std::env::var("TENURE_TEST_POSTGRES").expect(
        "TENURE_TEST_POSTGRES is not set: run `cargo xtask test tenure-server`, which starts a throw-away server",
    )
}

/// The folder for database files: the one in memory that `cargo xtask test` names, because checkpoints wait for the disk.
fn files() -> PathBuf {
    std::env::var_os("TENURE_TEST_FILES").map_or_else(std::env::temp_dir, Into::into)
}

/// Where the data of one server lives. It outlives the server, which can be started again on it.
pub(crate) struct Place {
    pub(crate) dsn: String,
    /// Only on PostgreSQL.
    pub(crate) schema: String,
    folder: TempDir,
}

impl Place {
    pub(crate) fn new(backend: Backend) -> Self {
        let folder = tempfile::tempdir_in(files()).unwrap();
        let schema = format!("h{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dsn = match backend {
            Backend::Postgres => format!("{}?schema={schema}&pool_size=5", postgres_dsn()),
            // No test cuts the power, so no commit needs to wait for the disk.
            Backend::Sqlite => format!("sqlite:{}?durability=crash_only", folder.path().join("tenure.db").display()),
        };
        Place { dsn, schema, folder }
    }

    /// A file that goes away with the data.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn start(&self, flags: &[&str]) -> Server {
        self.start_on(&self.dsn, flags)
    }

    /// Starts a server that finds its data in another way than the DSN says.
    pub(crate) fn start_on(&self, dsn: &str, flags: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments(&["--dsn", dsn], flags)).stdin(Stdio::null());
        Server::started(command, &self.file("log"))
    }

    /// Starts a server with nothing but a configuration file.
    pub(crate) fn start_with_config(&self, yaml: &str, flags: &[&str]) -> Server {
        let file = self.file("tenure.yaml");
        std::fs::write(&file, yaml).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments(&["--config", file.to_str().unwrap()], flags)).stdin(Stdio::null());
        Server::started(command, &self.file("log"))
    }
}

fn arguments(first: &[&str], flags: &[&str]) -> Vec<String> {
    let all = [&["serve", "--listen", "127.0.0.1:0"][..], first, flags].concat();
    all.into_iter().map(str::to_owned).collect()
}

/// A running server; killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    fn started(mut command: Command, log: &Path) -> Self {
        let file = File::options().create(true).append(true).open(log).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(file).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            tell.send(lines.next()).ok();
            // Read to the end, so that the server never waits for a reader.
            lines.for_each(drop);
        });
        let line = told.recv_timeout(PATIENCE).ok().flatten().unwrap_or_default();
        match line.strip_prefix("listening on http://").and_then(|address| address.parse().ok()) {
            Some(address) => Server { child, address },
            None => {
                child.kill().ok();
                child.wait().ok();
                let log = std::fs::read_to_string(log).unwrap_or_default();
                panic!("the server said '{line}' instead of where it listens; its log:\n{log}")
            }
        }
    }

    pub(crate) fn api(&self) -> Api {
        Api::new(self.address)
    }

    /// Asks it to stop.
    pub(crate) fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().unwrap();
    }

    pub(crate) async fn ended(&mut self) -> ExitStatus {
        eventually("the server ends", async || self.child.try_wait().unwrap()).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Nothing drops what is static, so a shell waits for the end of this process, which closes the pipe it reads from, and
/// then ends the server and removes its data.
const GUARD: &str = r#"folder=$1; shift; "$@" </dev/null & exec >&-; read -r _; kill -9 $!; wait $!; rm -rf "$folder""#;

type Key = (Backend, &'static str);
static SHARED: LazyLock<Mutex<HashMap<Key, Server>>> = LazyLock::new(Mutex::default);

/// The server that all cases of a section share; started by the first of them.
pub(crate) fn shared(backend: Backend, section: &'static str, flags: &[&str]) -> Api {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let server = shared.entry((backend, section)).or_insert_with(|| {
        let Place { dsn, folder, .. } = Place::new(backend);
        let folder = folder.keep();
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "sh"]).arg(&folder).arg(env!("CARGO_BIN_EXE_tenure"));
        guard.args(arguments(&["--dsn", &dsn], flags)).stdin(Stdio::piped());
        Server::started(guard, &folder.join("log"))
    });
    server.api()
}
