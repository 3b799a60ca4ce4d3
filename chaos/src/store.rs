//! The database of a scenario: how workers reach it, and what can be done to it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tenure_cluster::{Cluster, Durability};

use crate::Result;
use crate::proxy::{Mode, Proxy};
use crate::scenario::{Going, Kept};

/// What workers add to a DSN, so that a call has a limit that a test can wait for.
const OPTIONS: &str = "statement_timeout=3&connect_timeout=2&pool_size=5";
/// How large the disk is that is soon full, in MiB, and how much larger for every second: the archive grows.
const DISK: (u64, f64) = (24, 0.2);

/// A running database.
pub(crate) enum Database {
    Postgres { node: Cluster, proxy: Proxy },
    Pair { primary: Cluster, standby: Option<Cluster>, proxies: [Proxy; 2], front: usize },
    File { path: PathBuf, disk: Option<Disk>, _folder: TempDir },
}

/// A small file system of our own.
pub(crate) struct Disk(PathBuf);

impl Drop for Disk {
    fn drop(&mut self) {
        // What cannot be unmounted now is unmounted when its last user ends.
        Command::new("umount").arg("--lazy").arg(&self.0).status().ok();
    }
}

fn address(node: &Cluster) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, node.port()))
}

impl Database {
    /// Starts it; none: this machine does not allow it, for the reason that was printed.
    pub(crate) async fn start(kept: Kept, length: Duration) -> Result<Option<Self>> {
        let node = || tokio::task::block_in_place(|| Cluster::start(Durability::None));
        match kept {
            Kept::Postgres => {
                let node = node()?;
                let proxy = Proxy::start(address(&node)).await?;
                Ok(Some(Database::Postgres { node, proxy }))
            }
            Kept::Pair => {
                let primary = node()?;
                let standby = tokio::task::block_in_place(|| primary.start_standby())?;
                let proxies = [Proxy::start(address(&primary)).await?, Proxy::start(address(&standby)).await?];
                Ok(Some(Database::Pair { primary, standby: Some(standby), proxies, front: 0 }))
            }
            Kept::Sqlite => {
                let folder = tempfile::tempdir()?;
                Ok(Some(Database::File { path: folder.path().join("tenure.db"), disk: None, _folder: folder }))
            }
            Kept::SmallDisk => {
                let folder = tempfile::tempdir()?;
                let mut mount = Command::new("mount");
                let size = DISK.0 + (length.as_secs_f64() * DISK.1) as u64;
                mount.args(["-t", "tmpfs", "-o", &format!("size={size}m"), "tenure-chaos"]).arg(folder.path());
                if !mount.status().is_ok_and(|status| status.success()) {
                    return Ok(None);
                }
                let disk = Some(Disk(folder.path().to_owned()));
                Ok(Some(Database::File { path: folder.path().join("tenure.db"), disk, _folder: folder }))
            }
        }
    }

    pub(crate) fn is_postgres(&self) -> bool {
        !matches!(self, Database::File { .. })
    }

    /// The way that workers take, where faults can be put in.
    pub(crate) fn dsn(&self) -> String {
        match self {
            Database::Postgres { proxy, .. } => format!("postgres://postgres@{}/postgres?{OPTIONS}", proxy.address()),
            Database::Pair { proxies: [first, second], .. } => format!(
                "postgres://postgres@{},{}/postgres?{OPTIONS}&target_session_attrs=read-write",
                first.address(),
                second.address()
            ),
            Database::File { path, .. } => format!("sqlite:{}", path.display()),
        }
    }

    /// The way past all proxies.
    pub(crate) fn direct(&self) -> String {
        match self {
            Database::Postgres { node, .. } | Database::Pair { primary: node, .. } => {
                format!("postgres://postgres@127.0.0.1:{}/postgres", node.port())
            }
            Database::File { path, .. } => format!("sqlite:{}", path.display()),
        }
    }

    fn node(&mut self) -> Result<&mut Cluster> {
        match self {
            Database::Postgres { node, .. } | Database::Pair { primary: node, .. } => Ok(node),
            Database::File { .. } => Err("a file is no server".into()),
        }
    }

    pub(crate) fn restart(&mut self, away: Duration) -> Result<()> {
        let node = self.node()?;
        tokio::task::block_in_place(|| node.crash_and_restart(away))
    }

    pub(crate) fn terminate(&mut self) -> Result<()> {
        let text = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                    where backend_type = 'client backend' and pid <> pg_backend_pid()";
        let node = self.node()?;
        tokio::task::block_in_place(|| node.ask(text)).map(drop)
    }

    pub(crate) async fn freeze(&mut self, time: Duration) -> Result<()> {
        let node = self.node()?;
        node.freeze()?;
        tokio::time::sleep(time).await;
        node.thaw()
    }

    /// What the way to the database does from now on.
    pub(crate) fn network(&self, mode: Mode) {
        match self {
            Database::Postgres { proxy, .. } => proxy.set(mode),
            Database::Pair { proxies, .. } => proxies.iter().for_each(|proxy| proxy.set(mode)),
            Database::File { .. } => {}
        }
    }

    /// The primary goes, the standby takes over, and gets a new standby.
    pub(crate) async fn fail_over(&mut self, going: Going) -> Result<()> {
        let Database::Pair { primary, standby, proxies, front } = self else {
            return Err("there is no standby".into());
        };
        let old = *front;
        match going {
            Going::Killed => primary.kill()?,
            Going::Frozen => primary.freeze()?,
            Going::Unreachable => proxies[old].set(Mode::Freeze),
        }
        let next = standby.take().ok_or("there is no standby")?;
        tokio::task::block_in_place(|| next.promote())?;
        *front = 1 - old;
        let mut gone = std::mem::replace(primary, next);
        // Clients must find the new primary while the old one is still silent.
        tokio::time::sleep(Duration::from_secs(5)).await;
        // Never two of them: the old primary is killed before it can answer again. Its connections vanish with its host.
        if going == Going::Unreachable {
            proxies[old].set(Mode::HalfOpen);
        }
        gone.kill()?;
        drop(gone);
        let next = tokio::task::block_in_place(|| primary.start_standby())?;
        proxies[old].lead_to(address(&next));
        proxies[old].set(Mode::Pass);
        *standby = Some(next);
        Ok(())
    }

    /// The SQLite file.
    pub(crate) fn file(&self) -> Result<&Path> {
        match self {
            Database::File { path, .. } => Ok(path),
            _ => Err("a server has no file of ours".into()),
        }
    }

    /// Leaves no room on the disk, and then gives it back.
    pub(crate) async fn fill(&self, time: Duration) -> Result<()> {
        let Database::File { disk: Some(Disk(folder)), .. } = self else { return Err("there is no small disk".into()) };
        let filler = folder.join("filler");
        let mut file = std::fs::File::create(&filler)?;
        let until = tokio::time::Instant::now() + time;
        // What a checkpoint gives back is taken again.
        while tokio::time::Instant::now() < until {
            while std::io::Write::write_all(&mut file, &[7; 4096]).is_ok() {}
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        drop(file);
        Ok(std::fs::remove_file(filler)?)
    }
}
