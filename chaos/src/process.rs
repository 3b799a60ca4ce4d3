//! Worker and server processes: started, killed, stopped and started again.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tenure_chaos::history::{Event, Recorder};

use crate::Result;
use crate::job::{Job, Role};

/// A place for a worker process, which is filled again when the process is killed.
pub(crate) struct Slot {
    job: Job,
    number: usize,
    generation: usize,
    child: Child,
}

impl Slot {
    pub(crate) fn start(job: Job, number: usize) -> Result<Self> {
        let (generation, job) = (0, named(job, number, 0));
        Ok(Slot { child: spawn(&job)?, job, number, generation })
    }

    pub(crate) fn kill(&mut self, recorder: &Recorder) -> Result<()> {
        recorder.write(Event::Killed { target: self.job.process.clone() });
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    pub(crate) fn restart(&mut self) -> Result<()> {
        self.generation += 1;
        self.job = named(self.job.clone(), self.number, self.generation);
        self.child = spawn(&self.job)?;
        Ok(())
    }

    pub(crate) async fn stop(&self, recorder: &Recorder, time: Duration) -> Result<()> {
        pause(&self.job.process, self.child.id(), recorder, time).await
    }

    /// Asks the process to end, and kills it when it does not.
    pub(crate) fn ask_to_end(&mut self) {
        drop(self.child.stdin.take());
    }

    pub(crate) fn end(&mut self, recorder: &Recorder, patience: Duration) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < patience {
            if let Some(status) = self.child.try_wait()? {
                return match status.success() {
                    true => Ok(()),
                    false => Err(format!("{} ended with {status}", self.job.process).into()),
                };
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        eprintln!("{} does not end, and is killed", self.job.process);
        self.kill(recorder)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn named(job: Job, number: usize, generation: usize) -> Job {
    Job { process: format!("{}{number}-{generation}", job.role.name()), ..job }
}

fn spawn(job: &Job) -> Result<Child> {
    let log = log(&job.folder, &job.process)?;
    let text = serde_json::to_string(job)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", &text]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
    Ok(command.spawn()?)
}

fn log(folder: &Path, process: &str) -> Result<File> {
    Ok(File::options().create(true).append(true).open(folder.join(format!("{process}.log")))?)
}

async fn pause(process: &str, id: u32, recorder: &Recorder, time: Duration) -> Result<()> {
    recorder.write(Event::Stopped { target: process.to_owned() });
    signal("-STOP", id)?;
    tokio::time::sleep(time).await;
    signal("-CONT", id)?;
    recorder.write(Event::Continued { target: process.to_owned() });
    Ok(())
}

fn signal(name: &str, id: u32) -> Result<()> {
    match Command::new("kill").args([name, &id.to_string()]).status()?.success() {
        true => Ok(()),
        false => Err(format!("process {id} cannot be sent {name}").into()),
    }
}

/// A `tenure serve` on a port that stays the same when it is started again.
pub(crate) struct Server {
    child: Child,
    name: String,
    port: u16,
    dsn: String,
    folder: std::path::PathBuf,
}

impl Server {
    pub(crate) fn start(number: usize, dsn: &str, folder: &Path) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let name = format!("server{number}");
        let child = serve(&name, port, dsn, folder)?;
        Ok(Server { child, name, port, dsn: dsn.to_owned(), folder: folder.to_owned() })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn kill(&mut self, recorder: &Recorder) -> Result<()> {
        recorder.write(Event::Fault { what: format!("{} is killed", self.name) });
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again. Until it is ready it promises nothing: it has its port, and waits for its database.
    pub(crate) fn restart(&mut self, recorder: &Recorder) -> Result<()> {
        recorder.write(Event::Stopped { target: self.name.clone() });
        self.child = serve(&self.name, self.port, &self.dsn, &self.folder)?;
        recorder.write(Event::Continued { target: self.name.clone() });
        Ok(())
    }

    /// Ends it with SIGTERM.
    pub(crate) fn terminate(&mut self, recorder: &Recorder) -> Result<()> {
        recorder.write(Event::Fault { what: format!("{} is told to end", self.name) });
        signal("-TERM", self.child.id())?;
        self.child.wait()?;
        Ok(())
    }

    pub(crate) async fn stop(&self, recorder: &Recorder, time: Duration) -> Result<()> {
        pause(&self.name, self.child.id(), recorder, time).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn serve(name: &str, port: u16, dsn: &str, folder: &Path) -> Result<Child> {
    let program = std::env::current_exe()?.with_file_name("tenure");
    if !program.exists() {
        return Err(format!("{} is missing: run `cargo xtask chaos`, which builds it first", program.display()).into());
    }
    let listen = format!("127.0.0.1:{port}");
    let mut command = Command::new(program);
    command.args(["serve", "--listen", &listen, "--log", "warn", "--log-format", "json", "--shutdown-timeout", "5s"]);
    command.env("TENURE_DSN", dsn).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log(folder, name)?);
    let mut child = command.spawn()?;
    let Some(stdout) = child.stdout.take() else { return Err("the server has no standard output".into()) };
    let mut lines = BufReader::new(stdout).lines();
    match lines.next() {
        Some(Ok(line)) if line.starts_with("listening on") => {
            // Read to the end, so that the server never waits for a reader.
            std::thread::spawn(move || lines.for_each(drop));
            Ok(child)
        }
        said => {
            child.kill().ok();
            child.wait()?;
            Err(format!("{name} said {said:?} instead of where it listens; its log is in {}", folder.display()).into())
        }
    }
}

/// The worker processes of a scenario with the library.
pub(crate) const LIBRARY: [Role; 6] =
    [Role::Producer, Role::Hand, Role::Runner, Role::Producer, Role::Hand, Role::Runner];
