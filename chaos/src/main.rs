//! Runs Tenure under load and faults, records what its users saw, and checks it. Started by `cargo xtask chaos`.
//!
//! This process plans the faults from a seed, and starts all others: workers, which are this program again, servers
//! (`tenure serve`) and databases. What is checked is written in the library of this crate.

mod hand;
mod http;
mod job;
mod library;
mod process;
mod producer;
mod proxy;
mod run;
mod runner;
mod scenario;
mod store;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use tenure_chaos::checker::{self, Kind, Violation, Volume};
use tenure_chaos::history::{self, Event};

use crate::job::{Job, Role, Worker};
use crate::scenario::{SCENARIOS, Scenario};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A history with fewer messages than this proves nothing.
const LEAST: usize = 100;

/// Runs Tenure under load and faults, and checks what its users saw.
#[derive(Parser)]
struct Cli {
    /// Run only the scenarios whose name begins with one of these.
    #[arg(long)]
    only: Vec<String>,
    /// How long each scenario is under faults.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Plan the faults of this seed; a random one otherwise.
    #[arg(long)]
    seed: Option<u64>,
    /// Keep the histories even if nothing is violated.
    #[arg(long)]
    keep: bool,
    /// Succeed although a scenario cannot run on this machine.
    #[arg(long)]
    allow_missing: bool,
    #[command(subcommand)]
    role: Option<Process>,
}

#[derive(Subcommand)]
enum Process {
    /// Check the histories of a folder that was kept.
    Check {
        /// The folder.
        folder: PathBuf,
    },
    /// Used by the program itself: a worker process.
    #[command(hide = true)]
    Worker {
        /// What it does, as JSON.
        job: String,
    },
    /// Used by the program itself: holds SQLite's write lock.
    #[command(hide = true)]
    HoldLock {
        /// The file.
        file: PathBuf,
        /// How long, in milliseconds.
        millis: u64,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("chaos: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = match &cli.role {
        None => runtime.block_on(run_all(&cli)),
        Some(Process::Check { folder }) => check(folder),
        Some(Process::Worker { job }) => runtime.block_on(work(job)).map(|()| true),
        Some(Process::HoldLock { file, millis }) => hold_lock(file, Duration::from_millis(*millis)).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chaos: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run_all(cli: &Cli) -> Result<bool> {
    let seed = cli.seed.unwrap_or_else(|| rand::random_range(0..1_000_000));
    let wanted =
        |scenario: &&Scenario| cli.only.is_empty() || cli.only.iter().any(|name| scenario.name.starts_with(name));
    let scenarios: Vec<_> = SCENARIOS.iter().filter(wanted).collect();
    if scenarios.is_empty() {
        let names: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        return Err(format!("no scenario has this name: there are {}", names.join(", ")).into());
    }
    let (mut outcomes, mut sound) = (Vec::new(), true);
    for scenario in scenarios {
        println!("{}, seed {seed}, {} s", scenario.name, cli.seconds);
        let folder = std::env::temp_dir().join(format!("tenure-chaos-{}-{seed}-{}", scenario.name, std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let began = Instant::now();
        let ran = run::run(scenario, seed, Duration::from_secs(cli.seconds), &folder).await;
        let outcome = match ran {
            Err(error) => {
                sound = false;
                format!("FAILED to run: {error}; its files are in {}", folder.display())
            }
            Ok(false) => {
                sound &= cli.allow_missing;
                format!("NOT RUN: it needs {}; --allow-missing goes on without it", run::needs(scenario.kept))
            }
            Ok(true) if check(&folder)? => {
                if !cli.keep {
                    std::fs::remove_dir_all(&folder)?;
                }
                format!("passed in {:.0} s", began.elapsed().as_secs_f64())
            }
            Ok(true) => {
                sound = false;
                format!("VIOLATED; its histories are in {}", folder.display())
            }
        };
        println!("{}: {outcome}\n", scenario.name);
        outcomes.push(format!("{:<18} {outcome}", scenario.name));
    }
    println!("seed {seed}");
    outcomes.iter().for_each(|outcome| println!("{outcome}"));
    if !sound {
        println!("run it again: cargo xtask chaos --seed {seed} --seconds {} --only <scenario>", cli.seconds);
    }
    Ok(sound)
}

/// Checks the histories of a folder, and prints what they say. Whether nothing is violated.
fn check(folder: &Path) -> Result<bool> {
    let (records, torn) = history::read(folder)?;
    let Volume { calls, acknowledged, leases, finished } = checker::volume(&records);
    println!("  {calls} calls, {acknowledged} messages acknowledged, {leases} leases, {finished} messages finished");
    let mut kinds: BTreeMap<Kind, Vec<Violation>> = BTreeMap::new();
    for violation in checker::check(&records, &torn) {
        kinds.entry(violation.kind).or_default().push(violation);
    }
    for (kind, violations) in &kinds {
        println!("  {kind:?}: {} times", violations.len());
        for (place, violation) in violations.iter().take(5).enumerate() {
            println!("    {violation}");
            let uid = violation.uid.as_deref().filter(|_| place == 0);
            for record in uid.into_iter().flat_map(|uid| checker::concerning(&records, uid)) {
                println!("      {} {} {}", record.at, record.process, serde_json::to_string(&record.event)?);
            }
        }
    }
    let enough = acknowledged >= LEAST && finished >= LEAST;
    if !enough {
        println!("  this is too little to prove anything: at least {LEAST} messages must be acknowledged and finished");
    }
    Ok(kinds.is_empty() && enough)
}

/// A worker process: it works until its standard input is closed.
async fn work(job: &str) -> Result<()> {
    let worker = Worker::new(serde_json::from_str::<Job>(job)?)?;
    let stop = worker.stop.clone();
    std::thread::spawn(move || {
        // Closed, or broken: the end either way.
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        stop.cancel();
    });
    match worker.job.role {
        Role::Producer => producer::run(&worker).await,
        Role::Hand => hand::run(&worker).await,
        Role::Runner => runner::run(&worker).await,
        Role::Http => http::run(&worker).await,
        Role::Drain => hand::drain(&worker).await,
        Role::HttpDrain => http::drain(&worker).await,
    }
    worker.recorder.write(Event::Exit);
    Ok(())
}

fn hold_lock(file: &Path, time: Duration) -> Result<()> {
    let connection = rusqlite::Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(20))?;
    connection.execute_batch("begin immediate")?;
    std::thread::sleep(time);
    connection.execute_batch("rollback")?;
    Ok(())
}
