//! The `tenure` command.

mod copy;
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
    /// Serves queues over HTTP.
    Serve(Box<tenure_server::config::Serve>),
    #[command(flatten)]
    Operate(Box<tenure_server::cli::Command>),
    /// Copies orchestrations out of a SQLite file of duroxide, and verifies the copy.
    Copy(copy::Copy),
    /// Produces a backlog and drains it, and shows how fast that went.
    Demo(demo::Demo),
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(serve) => tenure_server::serve::run(&serve).await.map_err(|error| error.to_string()),
        Command::Operate(command) => tenure_server::cli::run(*command).await.map_err(|error| error.to_string()),
        Command::Copy(copy) => copy::run(&copy).await.map_err(|error| error.to_string()),
        Command::Demo(demo) => demo::run(&demo).await.map_err(|error| error.to_string()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure: {error}");
            ExitCode::FAILURE
        }
    }
}
