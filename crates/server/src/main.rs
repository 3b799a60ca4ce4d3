//! The `tenure` command.

mod demo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Durable queues and durable workflows in the database you already have.
#[derive(Parser)]
#[command(name = "tenure", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Produces a backlog and drains it, and shows how fast that went.
    Demo(demo::Demo),
}

#[tokio::main]
async fn main() -> ExitCode {
    let Cli { command: Command::Demo(demo) } = Cli::parse();
    match demo::run(&demo).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure: {error}");
            ExitCode::FAILURE
        }
    }
}
