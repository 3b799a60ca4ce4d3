//! A throw-away PostgreSQL: from the installed binaries, on a free port of loopback, gone when it is dropped.
//!
//! The server refuses to run as root, so root runs it as the user `postgres`. It is our own child process, and it is
//! ended by its process id.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Whatever went wrong, in words.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// What a commit waits for.
#[derive(Clone, Copy, PartialEq)]
pub enum Durability {
    /// The disk: for benchmarks.
    Full,
    /// Nothing: for tests.
    None,
}

/// A running server, and its data.
pub struct Cluster {
    server: Child,
    folder: PathBuf,
    settings: Vec<String>,
    port: u16,
    dsn: String,
}

/// How long a server may take to start, to follow or to be promoted.
const PATIENCE: Duration = Duration::from_secs(60);
/// Tells the clusters of one process apart.
static NEXT: AtomicUsize = AtomicUsize::new(0);

impl Cluster {
    /// Makes the data and starts the server; installs PostgreSQL when it is missing.
    pub fn start(durability: Durability) -> Result<Self> {
        let bin = binaries()?;
        let folder = new_folder()?;
        let data = folder.join("data");
        let mut initdb = as_postgres(&bin.join("initdb"));
        initdb.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"]).arg(&data);
        succeed(initdb.stdout(Stdio::null()))?;
        // One user that needs a password, for the test of wrong ones.
        let access = "host all locked 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n\
             host replication all 127.0.0.1/32 trust\nlocal all all trust\n";
        std::fs::write(data.join("pg_hba.conf"), access)?;
        let port = free_port()?;
        let mut settings = settings(&folder, port);
        match durability {
            Durability::None => settings.push("fsync=off".to_owned()),
            Durability::Full => settings.extend(["shared_buffers=1GB", "max_wal_size=4GB"].map(str::to_owned)),
        }
        Cluster::serve(&bin, folder, settings, port)
    }

    fn serve(bin: &Path, folder: PathBuf, settings: Vec<String>, port: u16) -> Result<Self> {
        let dsn = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        let server = serve(bin, &folder, &settings)?;
        let mut cluster = Cluster { server, folder, settings, port, dsn };
        cluster.wait(bin, port)?;
        Ok(cluster)
    }

    /// Starts a standby of this server. From then on every commit here waits until the standby has it too.
    pub fn start_standby(&self) -> Result<Self> {
        let bin = binaries()?;
        let folder = new_folder()?;
        let mut backup = as_postgres(&bin.join("pg_basebackup"));
        backup.args([
            "-U",
            "postgres",
            "-h",
            "127.0.0.1",
            "-p",
            &self.port.to_string(),
            "-R",
            "--no-sync",
            "-c",
            "fast",
        ]);
        backup.args(["-X", "stream", "-d", "application_name=standby", "-D"]).arg(folder.join("data"));
        succeed(backup.stdout(Stdio::null()))?;
        let port = free_port()?;
        let mut settings = settings(&folder, port);
        settings.extend(self.settings.iter().filter(|setting| setting.starts_with("fsync=")).cloned());
        let standby = Cluster::serve(&bin, folder, settings, port)?;
        self.ask("alter system set synchronous_standby_names = 'standby'")?;
        self.ask("select pg_reload_conf()")?;
        self.until("select count(*) = 1 from pg_stat_replication where sync_state = 'sync'")?;
        Ok(standby)
    }

    /// Asks until the answer is true.
    fn until(&self, question: &str) -> Result<()> {
        let started = Instant::now();
        while self.ask(question)? != "t" {
            if started.elapsed() > PATIENCE {
                return Err(format!("not true within {} seconds: {question}", PATIENCE.as_secs()).into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Makes a standby a server of its own that takes writes.
    pub fn promote(&self) -> Result<()> {
        self.ask("select pg_promote()")?;
        // A setting of its primary: it would wait for a standby that it does not have.
        self.ask("alter system reset synchronous_standby_names")?;
        self.ask("select pg_reload_conf()")?;
        self.until("select not pg_is_in_recovery()")
    }

    /// Stops the server and all its processes with SIGSTOP: it still accepts TCP connections, and answers nothing.
    pub fn freeze(&self) -> Result<()> {
        // The server first: it would start new processes meanwhile.
        signal("-STOP", &[self.server.id()])?;
        signal("-STOP", &children(self.server.id())?)
    }

    /// Ends [`freeze`](Cluster::freeze).
    pub fn thaw(&self) -> Result<()> {
        signal("-CONT", &children(self.server.id())?)?;
        signal("-CONT", &[self.server.id()])
    }

    /// Ends the server and all its processes with SIGKILL, stopped or not.
    pub fn kill(&mut self) -> Result<()> {
        let processes = children(self.server.id())?;
        self.server.kill()?;
        signal("-KILL", &processes)?;
        self.server.wait()?;
        Ok(())
    }

    /// Ends the server at once, as a crash would, and starts it again on the same data and port.
    pub fn crash_and_restart(&mut self, away: Duration) -> Result<()> {
        let bin = binaries()?;
        self.quit();
        std::thread::sleep(away);
        self.server = serve(&bin, &self.folder, &self.settings)?;
        self.wait(&bin, self.port)
    }

    /// SIGQUIT: at once, without saving anything. The server's own children end with it.
    fn quit(&mut self) {
        if !matches!(self.server.try_wait(), Ok(None)) {
            return;
        }
        // A stopped process ends only after it was continued.
        self.thaw().ok();
        let pid = self.server.id().to_string();
        if Command::new("kill").args(["-QUIT", &pid]).status().is_err() {
            self.server.kill().ok();
        }
        self.server.wait().ok();
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it is.
    pub fn dsn(&self) -> &str {
        &self.dsn
    }

    /// Makes an empty database. Where it is.
    pub fn create_database(&self, name: &str) -> Result<String> {
        self.ask(&format!("create database {name}"))?;
        Ok(format!("postgres://postgres@127.0.0.1:{}/{name}", self.port))
    }

    /// Runs a statement with psql, and returns what it prints.
    pub fn ask(&self, text: &str) -> Result<String> {
        let mut psql = Command::new(binaries()?.join("psql"));
        psql.args(["-qAtX", "-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres", "-c", text]);
        let output = psql.env("PGCONNECT_TIMEOUT", "5").output()?;
        if !output.status.success() {
            return Err(format!("psql: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    fn wait(&mut self, bin: &Path, port: u16) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            let mut probe = Command::new(bin.join("pg_isready"));
            probe.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()]);
            if probe.status()?.success() {
                return Ok(());
            }
            if let Some(status) = self.server.try_wait()? {
                let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                return Err(format!("PostgreSQL ended at its start ({status}):\n{log}").into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!("PostgreSQL did not start within {} seconds", PATIENCE.as_secs()).into())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.quit();
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

fn new_folder() -> Result<PathBuf> {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("tenure-pg-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    if is_root() {
        succeed(Command::new("chown").arg("postgres:").arg(&folder))?;
    }
    Ok(folder)
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn settings(folder: &Path, port: u16) -> Vec<String> {
    vec![
        format!("port={port}"),
        "listen_addresses=127.0.0.1".to_owned(),
        format!("unix_socket_directories={}", folder.display()),
        "max_connections=300".to_owned(),
    ]
}

/// The processes that a process has started.
fn children(parent: u32) -> Result<Vec<u32>> {
    let output = Command::new("ps").args(["-o", "pid=", "--ppid", &parent.to_string()]).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>()?)
}

fn signal(signal: &str, pids: &[u32]) -> Result<()> {
    for pid in pids {
        // A process that ended meanwhile needs no signal.
        Command::new("kill").args([signal, &pid.to_string()]).stderr(Stdio::null()).status()?;
    }
    Ok(())
}

fn serve(bin: &Path, folder: &Path, settings: &[String]) -> Result<Child> {
    let mut server = as_postgres(&bin.join("postgres"));
    server.arg("-D").arg(folder.join("data"));
    for setting in settings {
        server.args(["-c", setting]);
    }
    let log = std::fs::File::options().create(true).append(true).open(folder.join("log"))?;
    Ok(server.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?)
}

fn binaries() -> Result<PathBuf> {
    if let Some(found) = installed() {
        return Ok(found);
    }
    println!("PostgreSQL is not installed: installing it with apt");
    let apt = |args: &[&str]| {
        let mut apt = Command::new("apt-get");
        succeed(apt.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null()))
    };
    apt(&["update", "-qq"])?;
    apt(&["install", "-y", "-qq", "postgresql-common"])?;
    // The package would otherwise make and start a server of its own.
    let config = Path::new("/etc/postgresql-common/createcluster.conf");
    if let Ok(text) = std::fs::read_to_string(config) {
        std::fs::write(config, format!("{text}\ncreate_main_cluster = false\n"))?;
    }
    apt(&["install", "-y", "-qq", "postgresql"])?;
    installed().ok_or_else(|| "apt installed no PostgreSQL server below /usr/lib/postgresql".into())
}

/// The newest installed version.
fn installed() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.join("bin/initdb").exists() && path.join("bin/postgres").exists())
        .max_by_key(|path| number(path));
    newest.map(|path| path.join("bin"))
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.starts_with(b"0\n"))
}

/// `setpriv` replaces itself by the program, so that the child's process id is the program's own.
fn as_postgres(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program).current_dir("/");
    command
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|error| format!("{:?} cannot be run: {error}", command.get_program()))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed: {status}").into()) }
}
