//! PostgreSQL servers that can be frozen, killed, replicated and promoted.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{NEXT, Result, as_postgres, binaries, is_root, serve, succeed};

/// How long a server may take to start, to follow or to be promoted.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server on loopback with data of its own; gone when it is dropped. Commits do not wait for the disk: what is tested
/// is the end of processes, not of the machine.
#[derive(Debug)]
pub struct Node {
    server: Child,
    bin: PathBuf,
    folder: PathBuf,
    port: u16,
}

impl Node {
    /// A new, empty server.
    ///
    /// # Errors
    /// Why it cannot be made or started.
    pub fn primary() -> Result<Self> {
        let (bin, folder) = (binaries()?, folder()?);
        let data = folder.join("data");
        let mut initdb = as_postgres(&bin.join("initdb"));
        initdb.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"]).arg(&data);
        succeed(initdb.stdout(Stdio::null()))?;
        let access = "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\nlocal all all trust\n";
        std::fs::write(data.join("pg_hba.conf"), access)?;
        Self::start(bin, folder)
    }

    /// A standby of another server, which follows it.
    ///
    /// # Errors
    /// Why it cannot be made or started.
    pub fn standby_of(primary: &Node) -> Result<Self> {
        let (bin, folder) = (binaries()?, folder()?);
        let mut copy = as_postgres(&bin.join("pg_basebackup"));
        copy.args(["-h", "127.0.0.1", "-p", &primary.port.to_string(), "-U", "postgres", "-R", "-X", "stream"]);
        copy.args(["-c", "fast", "--no-sync", "-D"]).arg(folder.join("data"));
        succeed(copy.stdout(Stdio::null()))?;
        Self::start(bin, folder)
    }

    fn start(bin: PathBuf, folder: PathBuf) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = serve(&bin, &folder, &settings(&folder, port))?;
        let mut node = Node { server, bin, folder, port };
        node.wait()?;
        Ok(node)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs a statement with psql, and returns what it prints.
    ///
    /// # Errors
    /// What psql says.
    pub fn ask(&self, text: &str) -> Result<String> {
        let mut psql = Command::new(self.bin.join("psql"));
        psql.args(["-qAtX", "-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres", "-c", text]);
        let output = psql.env("PGCONNECT_TIMEOUT", "5").output()?;
        if !output.status.success() {
            return Err(format!("psql: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// Lets every commit wait until a standby has it, and waits until a standby follows.
    ///
    /// # Errors
    /// When none follows in time.
    pub fn require_standby(&self) -> Result<()> {
        let following = || self.ask("select count(*) from pg_stat_replication where state = 'streaming'");
        until("a standby follows", || Ok(following()? != "0"))?;
        self.ask("alter system set synchronous_standby_names = '*'")?;
        self.ask("select pg_reload_conf()")?;
        let synchronous = || self.ask("select count(*) from pg_stat_replication where sync_state = 'sync'");
        until("a standby is synchronous", || Ok(synchronous()? != "0"))
    }

    /// Makes a standby the primary. Its commits then wait for no other server.
    ///
    /// # Errors
    /// When it does not become one in time.
    pub fn promote(&self) -> Result<()> {
        self.ask("select pg_promote(true, 60)")?;
        // A copy has the settings of its primary, and would wait for a standby that it does not have.
        self.ask("alter system reset synchronous_standby_names")?;
        self.ask("select pg_reload_conf()")?;
        until("the standby is promoted", || Ok(self.ask("select pg_is_in_recovery()")? == "f"))
    }

    /// Stops all its processes with SIGSTOP: connections stay open, and nothing is answered.
    ///
    /// # Errors
    /// When they cannot be stopped.
    pub fn freeze(&self) -> Result<()> {
        signal("-STOP", &self.processes())
    }

    /// Continues all its processes.
    ///
    /// # Errors
    /// When they cannot be continued.
    pub fn thaw(&self) -> Result<()> {
        signal("-CONT", &self.processes())
    }

    /// Ends all its processes with SIGKILL, frozen or not.
    pub fn kill(&mut self) {
        // A child that ends by itself in between is gone as well.
        signal("-KILL", &self.processes()).ok();
        self.server.kill().ok();
        self.server.wait().ok();
    }

    /// Ends it as a crash would, and starts it again on the same data and port.
    ///
    /// # Errors
    /// When it does not start in time.
    pub fn restart(&mut self, away: Duration) -> Result<()> {
        signal("-QUIT", &[self.server.id()])?;
        self.server.wait()?;
        std::thread::sleep(away);
        self.server = serve(&self.bin, &self.folder, &settings(&self.folder, self.port))?;
        self.wait()
    }

    /// Its own process and those of its connections.
    fn processes(&self) -> Vec<u32> {
        let parent = self.server.id();
        let mut found = vec![parent];
        let Ok(entries) = std::fs::read_dir("/proc") else { return found };
        for entry in entries.flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
            // The second field is the name in parentheses; the parent is the second one after it.
            let after = stat.rsplit_once(')').map(|(_, after)| after).unwrap_or_default();
            if after.split_whitespace().nth(1).and_then(|id| id.parse().ok()) == Some(parent) {
                found.push(id);
            }
        }
        found
    }

    fn wait(&mut self) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            let mut probe = Command::new(self.bin.join("pg_isready"));
            if probe.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]).status()?.success() {
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

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

fn folder() -> Result<PathBuf> {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("tenure-node-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    if is_root() {
        succeed(Command::new("chown").arg("postgres:").arg(&folder))?;
    }
    Ok(folder)
}

fn settings(folder: &Path, port: u16) -> Vec<String> {
    vec![
        format!("port={port}"),
        "listen_addresses=127.0.0.1".to_owned(),
        format!("unix_socket_directories={}", folder.display()),
        "max_connections=200".to_owned(),
        "fsync=off".to_owned(),
    ]
}

fn signal(name: &str, processes: &[u32]) -> Result<()> {
    let ids: Vec<String> = processes.iter().map(u32::to_string).collect();
    // A connection's process may end meanwhile, and `kill` then complains about that one.
    Command::new("kill").arg(name).args(&ids).stderr(Stdio::null()).status()?;
    Ok(())
}

fn until(what: &str, done: impl Fn() -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    loop {
        if done().unwrap_or(false) {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            return Err(format!("in vain for {} seconds: {what}", PATIENCE.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
