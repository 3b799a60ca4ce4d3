//! `tenure complete` and `tenure retry`: what becomes of leased messages.

use clap::Args;
use serde_json::json;

use super::show::count;
use super::when::When;
use super::{CliError, IDS, PATIENCE, Target};
use crate::client::Client;
use crate::wire::{QueueCompleteRequest, QueueRetryItem, QueueRetryRequest, Reply};

/// Ends leased messages: they are done, and gone.
#[derive(Args)]
pub struct Complete {
    #[command(flatten)]
    leased: Leased,
    #[command(flatten)]
    target: Target,
}

/// Gives leased messages back, now or later, or to the dead letters.
#[derive(Args)]
pub struct Retry {
    #[command(flatten)]
    leased: Leased,
    #[command(flatten)]
    when: When,
    /// Gives up: to the dead queue, or away if there is none.
    #[arg(long, conflicts_with_all = ["at", "after"])]
    dead: bool,
    #[command(flatten)]
    target: Target,
}

/// Which messages, as `tenure lease` prints them.
#[derive(Args)]
struct Leased {
    /// The queue.
    #[arg(value_name = "QUEUE")]
    queue: String,
    /// The partition that the messages were leased from.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
    partition: i32,
    /// The ids of the messages.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

pub(super) async fn run_complete(Complete { leased, target }: &Complete) -> Result<(), CliError> {
    let client = target.client().await?;
    complete(&client, &leased.queue, leased.partition, &leased.ids).await?;
    let document = json!({"queue_name": leased.queue, "partition": leased.partition, "completed": leased.ids.len()});
    target.tell(&document, &format!("completed {}", count(leased.ids.len() as u64)))
}

/// Completes messages, as many calls as that takes.
pub(super) async fn complete(client: &Client, queue: &str, partition: i32, ids: &[String]) -> Result<(), CliError> {
    for (done, ids) in ids.chunks(IDS).enumerate() {
        let request = QueueCompleteRequest {
            queue_name: queue.to_owned(),
            partition,
            request_timeout: PATIENCE.to_owned(),
            ids: ids.to_vec(),
        };
        let answer: Result<Reply, CliError> = client.call("/v1/queue.complete", &request).await;
        answer.map_err(|error| stopped(error, "completed", done))?;
    }
    Ok(())
}

pub(super) async fn run_retry(Retry { leased, when, dead, target }: &Retry) -> Result<(), CliError> {
    let client = target.client().await?;
    for (done, ids) in leased.ids.chunks(IDS).enumerate() {
        let item = |id: &String| QueueRetryItem { id: id.clone(), retry_at: when.instant(), dead: *dead };
        let request = QueueRetryRequest {
            queue_name: leased.queue.clone(),
            partition: leased.partition,
            items: ids.iter().map(item).collect(),
        };
        let answer: Result<Reply, CliError> = client.call("/v1/queue.retry", &request).await;
        answer.map_err(|error| stopped(error, "given back", done))?;
    }
    let document = json!({"queue_name": leased.queue, "partition": leased.partition, "retried": leased.ids.len()});
    target.tell(&document, &format!("gave back {}", count(leased.ids.len() as u64)))
}

/// The protocol carries out the ids of a call in turn and stops at the first that it cannot.
fn stopped(error: CliError, verb: &str, calls: usize) -> CliError {
    let sure = if calls == 0 { String::new() } else { format!("the first {} ids are {verb}; ", calls * IDS) };
    error.with_hint(format!("{sure}ids before the one that failed may be {verb} already: leave them out next time"))
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::super::tests::complaint;
    use super::*;

    #[test]
    fn a_retry_is_now_or_later_or_dead_and_only_one_of_them() {
        for line in ["", " --in 30s", " --at 2030-01-31T12:00:00Z", " --dead"] {
            assert_eq!(complaint(&format!("tenure retry mail --partition 1 a b{line}")), None, "{line}");
        }
        for line in ["--in 30s --dead", "--at 2030-01-31T12:00:00Z --dead", "--in 30s --at 2030-01-31T12:00:00Z"] {
            let found = complaint(&format!("tenure retry mail a {line}"));
            assert_eq!(found, Some(ErrorKind::ArgumentConflict), "{line}");
        }
    }

    #[test]
    fn ids_are_required() {
        assert_eq!(complaint("tenure complete mail"), Some(ErrorKind::MissingRequiredArgument));
        assert_eq!(complaint("tenure retry mail --partition 1"), Some(ErrorKind::MissingRequiredArgument));
        assert_eq!(complaint("tenure complete mail --partition 1 a b c"), None);
    }

    #[test]
    fn a_failure_says_what_is_surely_done() {
        let said = |calls| stopped(CliError::new("no"), "completed", calls).to_string();
        assert!(said(2).contains("the first 2000 ids are completed; ids before"), "{}", said(2));
        assert!(said(0).starts_with("no\n  ids before the one that failed"), "{}", said(0));
    }
}
