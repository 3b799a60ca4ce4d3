//! Our acts beside bare hand-written SQL, in one run, on one database, printed as ratios.
//!
//! Scenarios S1 to S6: enqueue one by one, enqueue in bulk, drain, produce and consume at a pace, idle pickup, and what
//! hurts (a large backlog, many leases, an old snapshot). The library and the server stand beside the kernel instead.
//! Both sides take turns; each figure is the median of the repetitions.

mod bare;
mod bare_sqlite;
mod combined;
mod http;
mod library;
mod load;
mod ours;
mod pickup;
mod report;
mod scenarios;

use clap::Parser;

use crate::report::Report;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Measures Tenure beside bare SQL.
#[derive(Parser)]
struct Cli {
    /// Only scenarios whose name begins with one of these: s1, s2, s3, s4, s5, s6a, s6b, s6c, library, sqlite, leases, memory, http.
    /// Rows of http are named like http-sqlite-64x1-100B: store, connections, messages in a call, bytes in a message.
    only: Vec<String>,
    /// Repetitions of each measurement.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Seconds per measurement.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Seconds that a transaction stays idle in s6c.
    #[arg(long, default_value_t = 60.0)]
    idle_seconds: f64,
    /// Writes all figures here as JSON.
    #[arg(long)]
    json: Option<std::path::PathBuf>,
    /// Used by the benchmark itself: consumes in a process of its own.
    #[arg(long, hide = true)]
    consume: Option<String>,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let dsn = std::env::var("TENURE_BENCH_POSTGRES")
            .map_err(|_| "TENURE_BENCH_POSTGRES is not set: run `cargo xtask bench`, which starts a server")?;
        if let Some(system) = cli.consume {
            return pickup::consume(&dsn, &system).await;
        }
        let mut report = Report::new(cli.repeat);
        scenarios::run(&dsn, &cli.only, cli.seconds, cli.idle_seconds, &mut report).await?;
        report.print();
        if let Some(path) = cli.json {
            std::fs::write(&path, serde_json::to_string_pretty(&report.json())?)?;
        }
        match report.failed() {
            0 => Ok(()),
            failed => Err(format!("{failed} floors do not hold").into()),
        }
    })
}
