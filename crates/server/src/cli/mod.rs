//! The operators' commands: queues, messages, leases, against a server or against a store.
//!
//! Invariant: every command writes down messages of the protocol and calls its paths, and nothing else, so that a
//! command can do what any client can do, and does the same to a server as to a store.

mod error;
mod feed;
mod finish;
mod import;
mod lease;
mod message;
mod produce;
mod queue;
mod show;
mod when;

use clap::{Args, Subcommand};

pub use error::CliError;

use crate::client::{Client, Place};
use crate::stores::DEFAULT_DSN;

/// How long the server may take over a call that does not wait for messages.
const PATIENCE: &str = "1m";
/// Ids in one call.
const IDS: usize = 1000;

/// What operators can do.
#[derive(Subcommand)]
pub enum Command {
    /// Creates, shows, changes and deletes queues.
    Queue(queue::Queue),
    /// Puts messages into a queue.
    Produce(produce::Produce),
    /// Takes messages out of a queue for a while, and prints them.
    Lease(lease::Lease),
    /// Ends leased messages: they are done, and gone.
    Complete(finish::Complete),
    /// Gives leased messages back, now or later, or to the dead letters.
    Retry(finish::Retry),
    /// Shows the messages of a queue without taking them.
    Message(message::Message),
    /// Stores messages that were listed elsewhere.
    Import(import::Import),
}

/// Carries out a command.
pub async fn run(command: Command) -> Result<(), CliError> {
    let done = match command {
        Command::Queue(queue) => queue::run(&queue).await,
        Command::Produce(produce) => produce::run(produce).await,
        Command::Lease(lease) => lease::run(&lease).await,
        Command::Complete(complete) => finish::run_complete(&complete).await,
        Command::Retry(retry) => finish::run_retry(&retry).await,
        Command::Message(message) => message::run(&message).await,
        Command::Import(import) => import::run(&import).await,
    };
    match done {
        Err(error) if error.is_closed_pipe() => Ok(()),
        done => done,
    }
}

/// Where a command goes, and in which form it answers.
#[derive(Args)]
pub(crate) struct Target {
    /// Asks this server, such as http://localhost:2319 [env: TENURE_SERVER].
    #[arg(long, global = true, value_name = "URL", conflicts_with = "dsn")]
    server: Option<String>,
    /// Asks this store: postgres://…, 'host=… dbname=…', sqlite:path or turso:///path [env: TENURE_DSN] [default: sqlite:tenure.db].
    #[arg(long, global = true, value_name = "DSN")]
    dsn: Option<String>,
    /// The API key that the server knows you by.
    #[arg(long, global = true, value_name = "KEY", env = "TENURE_KEY", hide_env_values = true)]
    key: Option<String>,
    /// Prints JSON: one document, or one a line where there may be many.
    #[arg(long, global = true)]
    json: bool,
}

impl Target {
    async fn client(&self) -> Result<Client, CliError> {
        Client::connect(self.place(|name| std::env::var(name).ok())).await
    }

    /// What is on the command line goes before the environment. The parser cannot do this: it would take a store in the
    /// environment and a server on the command line for a contradiction.
    fn place(&self, environment: impl Fn(&str) -> Option<String>) -> Place {
        let set = |name| environment(name).filter(|value| !value.is_empty());
        let key = self.key.clone().filter(|key| !key.is_empty());
        match (&self.server, &self.dsn) {
            (Some(url), _) => Place::Server { url: url.clone(), key },
            (None, Some(dsn)) => Place::Store { dsn: dsn.clone() },
            (None, None) => match set("TENURE_SERVER") {
                Some(url) => Place::Server { url, key },
                None => Place::Store { dsn: set("TENURE_DSN").unwrap_or_else(|| DEFAULT_DSN.to_owned()) },
            },
        }
    }

    /// Tells that a command did what it should: in a document for machines, in a sentence for people.
    fn tell(&self, document: &serde_json::Value, sentence: &str) -> Result<(), CliError> {
        if self.json { show::print_json(document) } else { show::print(sentence) }
    }
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(subcommand)]
        command: Command,
    }

    /// What the parser has against a command line.
    pub(super) fn complaint(line: &str) -> Option<ErrorKind> {
        Cli::try_parse_from(line.split(' ')).err().map(|error| error.kind())
    }

    fn target(line: &str) -> Target {
        match Cli::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}")).command {
            Command::Queue(queue) => queue.target,
            _ => panic!("{line} is about no queue"),
        }
    }

    fn server(url: &str) -> Place {
        Place::Server { url: url.to_owned(), key: None }
    }

    fn store(dsn: &str) -> Place {
        Place::Store { dsn: dsn.to_owned() }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_command_line_goes_before_the_environment_and_that_before_the_default() {
        let both = |name: &str| match name {
            "TENURE_SERVER" => Some("http://there".to_owned()),
            "TENURE_DSN" => Some("sqlite:there.db".to_owned()),
            _ => None,
        };
        let one = |name: &str| both(name).filter(|_| name == "TENURE_DSN");
        let none = |_: &str| Some(String::new());
        let bare = Target { key: None, ..target("tenure queue list") };
        assert_eq!(bare.place(both), server("http://there"));
        assert_eq!(bare.place(one), store("sqlite:there.db"));
        assert_eq!(bare.place(none), store("sqlite:tenure.db"));
        let here = Target { key: None, ..target("tenure queue list --server http://here") };
        assert_eq!(here.place(both), server("http://here"));
        let here = Target { key: None, ..target("tenure queue list --dsn sqlite:here.db") };
        assert_eq!(here.place(both), store("sqlite:here.db"));
    }

    #[test]
    fn where_a_command_goes_may_stand_before_its_verb_and_after_it() {
        for line in ["tenure queue --server http://x --json list", "tenure queue list --json --server http://x"] {
            let target = target(line);
            assert_eq!((target.server.as_deref(), target.json), (Some("http://x"), true), "{line}");
        }
    }

    #[test]
    fn a_server_and_a_store_at_once_are_refused() {
        let line = "tenure queue list --server http://x --dsn sqlite:x.db";
        assert_eq!(complaint(line), Some(ErrorKind::ArgumentConflict));
    }
}
