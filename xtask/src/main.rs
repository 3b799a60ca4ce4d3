//! The project's own commands, run as `cargo xtask <command>`.

mod cargo;
mod drivers;
mod duroxide;
mod memory;
mod schemathesis;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::cargo::{Cargo, Result};
use crate::memory::MemoryFolder;
use tenure_cluster::{Cluster, Durability};

/// Develops Tenure.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// All tests, on a throw-away PostgreSQL of their own; or those of one backend or package.
    Test {
        /// sqlite, turso, postgres, or a package.
        only: Option<String>,
        /// Passed on to the test programs.
        #[arg(last = true)]
        rest: Vec<String>,
    },
    /// Formatting, lints, documentation and everything that needs no server.
    Check,
    /// The random-operations test at length: 1,000 seeds on SQLite, 200 on PostgreSQL, 200 on Turso.
    Model {
        /// The first seed.
        #[arg(long, default_value_t = 1000)]
        first: u64,
    },
    /// The benchmark, on a throw-away PostgreSQL with durable settings.
    Bench {
        /// Passed on to the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Load, faults, recorded histories and their check, on PostgreSQL and SQLite, with the library and the server.
    Chaos {
        /// Passed on: --seconds, --seed, --only, --keep, or `check <folder>`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// The duroxide provider beside its rivals, under duroxide's own stress tests.
    BenchDuroxide {
        /// A, B, C, D, S, L, large, sequential, idle, sqlite-C, sqlite-D, sqlite-S; none: all.
        only: Vec<String>,
        /// How often each is run, in turns.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// How long each run starts orchestrations.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// duroxide's own stress and large-payload tests on our provider, on PostgreSQL and SQLite: all must succeed.
    StressDuroxide {
        /// How long each run starts orchestrations.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// The SQL functions through psycopg 2 and 3, asyncpg, node-postgres and JDBC; needs Python, Node and Java, and the network
    /// once.
    Drivers,
    /// Writes the golden dumps of the schema anew.
    Schema,
    /// Schemathesis against a server of our own; needs Python, and the network once.
    Schemathesis {
        /// Passed on to Schemathesis.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Writes the golden description of the server's API anew.
    Openapi,
    /// Keeps a throw-away PostgreSQL running until Enter is pressed, and prints its DSN.
    Postgres,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Test { only: None, rest } => {
            check()?;
            let (cluster, files) = (Cluster::start(Durability::None)?, MemoryFolder::new());
            Cargo::test(&["--workspace", "--all-features"], &rest)
                .env("TENURE_TEST_POSTGRES", cluster.dsn())
                .files(files.as_ref())
                .run()
        }
        Command::Test { only: Some(only), rest } => test_only(&only, &rest),
        Command::Check => {
            check()?;
            test_only("sqlite", &[])
        }
        Command::Model { first } => model(first),
        Command::Bench { rest } => {
            let cluster = Cluster::start(Durability::Full)?;
            // The HTTP rows run the server as a process of its own, which they find beside the benchmark.
            Cargo::new(&["build", "--release", "--package", "tenure-server"]).run()?;
            Cargo::new(&["run", "--release", "--package", "tenure-bench", "--"])
                .args(&rest)
                .env("TENURE_BENCH_POSTGRES", cluster.dsn())
                .run()
        }
        Command::Chaos { rest } => {
            // The servers are processes of their own, which the test finds beside itself.
            Cargo::new(&["build", "--package", "tenure-server"]).run()?;
            Cargo::new(&["run", "--package", "tenure-chaos", "--"]).args(&rest).run()
        }
        Command::BenchDuroxide { only, rounds, seconds } => duroxide::bench(&only, rounds, seconds),
        Command::StressDuroxide { seconds } => duroxide::stress(seconds),
        Command::Drivers => drivers::run(),
        Command::Schema => {
            let cluster = Cluster::start(Durability::None)?;
            Cargo::test(&["--package", "tenure-store", "--all-features", "--test", "schema"], &[])
                .env("TENURE_TEST_POSTGRES", cluster.dsn())
                .env("TENURE_WRITE_SCHEMA", "1")
                .run()
        }
        Command::Schemathesis { rest } => schemathesis::run(&rest),
        Command::Openapi => Cargo::test(&["--package", "tenure-server", "--lib"], &["openapi".to_owned()])
            .env("TENURE_WRITE_OPENAPI", "1")
            .run(),
        Command::Postgres => {
            let cluster = Cluster::start(Durability::Full)?;
            println!("{}", cluster.dsn());
            std::io::stdin().read_line(&mut String::new())?;
            Ok(())
        }
    }
}

fn check() -> Result<()> {
    Cargo::new(&["fmt", "--all", "--check"]).run()?;
    Cargo::new(&["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"]).run()?;
    for package in ["tenure-store", "tenure", "tenure-duroxide", "tenure-server"] {
        Cargo::new(&["clippy", "--package", package, "--no-default-features", "--", "-D", "warnings"]).run()?;
    }
    Cargo::new(&["doc", "--workspace", "--no-deps", "--all-features"]).env("RUSTDOCFLAGS", "-D warnings").run()
}

/// The kernel's test programs that need PostgreSQL.
const POSTGRES: [&str; 14] = [
    "postgres",
    "schema",
    "install",
    "statements",
    "plans",
    "connect",
    "transactions",
    "triggers",
    "processes",
    "faults",
    "floor",
    "frozen",
    "races",
    "repeats",
];

/// A backend's part of the suite, or a package.
fn test_only(only: &str, rest: &[String]) -> Result<()> {
    let store = ["--package", "tenure-store", "--all-features"];
    let files = MemoryFolder::new();
    match only {
        "sqlite" => {
            let parts = ["--lib", "--test", "sqlite", "--test", "files", "--test", "tidy"];
            Cargo::test(&[&store[..], &parts].concat(), rest).files(files.as_ref()).run()
        }
        "turso" => {
            let parts = ["--test", "turso", "--test", "files"];
            Cargo::test(&[&store[..], &parts].concat(), rest).files(files.as_ref()).run()
        }
        "postgres" => {
            let cluster = Cluster::start(Durability::None)?;
            let parts: Vec<&str> = POSTGRES.iter().flat_map(|test| ["--test", test]).collect();
            Cargo::test(&[&store[..], &parts].concat(), rest)
                .env("TENURE_TEST_POSTGRES", cluster.dsn())
                .files(files.as_ref())
                .run()
        }
        package => {
            let cluster = Cluster::start(Durability::None)?;
            Cargo::test(&["--package", package, "--all-features"], rest)
                .env("TENURE_TEST_POSTGRES", cluster.dsn())
                .files(files.as_ref())
                .run()
        }
    }
}

fn model(first: u64) -> Result<()> {
    let cluster = Cluster::start(Durability::None)?;
    for (backend, seeds) in [("sqlite", "1000"), ("postgres", "200"), ("turso", "200")] {
        println!("model: {seeds} seeds from {first} on {backend}");
        let parts = ["--package", "tenure-store", "--all-features", "--test", backend];
        Cargo::test(&parts, &["random".to_owned()])
            .env("TENURE_TEST_POSTGRES", cluster.dsn())
            .env("TENURE_MODEL_FIRST", &first.to_string())
            .env("TENURE_MODEL_SEEDS", seeds)
            .run()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use std::path::Path;

    use super::POSTGRES;

    #[test]
    fn every_test_program_that_starts_on_postgres_is_run_for_postgres() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/store/tests");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let source = if path.is_dir() { path.join("main.rs") } else { path };
            let Ok(text) = std::fs::read_to_string(source) else { continue };
            let needed = ["support::postgres", "postgres_dsn", "Cluster::start"].iter().any(|call| text.contains(call));
            assert!(!needed || POSTGRES.contains(&name.as_str()), "`cargo xtask test postgres` leaves out {name}");
        }
    }
}
