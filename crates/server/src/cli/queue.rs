//! `tenure queue`: create, list, info, update, delete, stats, clear.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use super::show::{or_dash, print, print_json, table};
use super::when::{duration, shown, wire};
use super::{CliError, Target};
use crate::client::Client;
use crate::wire::{
    QueueClearRequest, QueueInfo, QueueLogicalStats, QueuePartitionStats, QueueStatsRequest, QueueStatsResponse,
    QueuesDeleteRequest, QueuesInfoRequest, QueuesListRequest, QueuesListResponse, Reply,
};

/// Creates, shows, changes and deletes queues.
#[derive(Args)]
pub struct Queue {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    pub(super) target: Target,
}

#[derive(Subcommand)]
enum Verb {
    /// Creates a queue.
    Create(Create),
    /// Lists the queues of a namespace by name.
    List(List),
    /// Shows the settings of a queue.
    Info(Name),
    /// Changes settings of a queue; those that are not named stay as they are.
    Update(Update),
    /// Deletes a queue with everything in it.
    Delete(Delete),
    /// Counts the messages of a queue, partition by partition.
    Stats(Name),
    /// Deletes messages of a queue.
    Clear(Clear),
}

#[derive(Args)]
struct Name {
    /// The name of the queue.
    #[arg(value_name = "QUEUE")]
    name: String,
}

#[derive(Args)]
struct Create {
    /// The name of the queue.
    #[arg(value_name = "QUEUE")]
    name: String,
    /// How long a message is leased to whoever takes it.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    lease: Duration,
    /// How long a message may stay in the queue before it is dead.
    #[arg(long, value_name = "DURATION", default_value = "168h", value_parser = duration)]
    expire: Duration,
    /// How many partitions the queue has, for good.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    partitions: i32,
    /// How often a message is delivered before it is dead; 0 is no limit.
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
    max_attempts: i32,
    /// The queue that dead messages go to; without one they are deleted.
    #[arg(long, value_name = "QUEUE")]
    dead_queue: Option<String>,
    /// A note about the queue.
    #[arg(long, value_name = "TEXT")]
    reference: Option<String>,
    /// The namespace that the queue belongs to, for good; _system when it is not named.
    #[arg(long)]
    namespace: Option<String>,
}

#[derive(Args)]
struct List {
    /// The namespace; _system when it is not named.
    #[arg(long)]
    namespace: Option<String>,
    /// Begins at this name, which need not exist.
    #[arg(long, value_name = "QUEUE")]
    from: Option<String>,
    /// Lists at most so many.
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(i32).range(1..=65536))]
    limit: i32,
}

#[derive(Args)]
struct Update {
    /// The name of the queue.
    #[arg(value_name = "QUEUE")]
    name: String,
    #[command(flatten)]
    change: Change,
}

#[derive(Args, Default)]
#[group(required = true, multiple = true)]
struct Change {
    /// How long a message is leased from now on.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lease: Option<Duration>,
    /// How long a new message may stay in the queue before it is dead.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    expire: Option<Duration>,
    /// How often a message is delivered before it is dead; 0 is no limit.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(i32).range(0..))]
    max_attempts: Option<i32>,
    /// The queue that dead messages go to; an empty name is none.
    #[arg(long, value_name = "QUEUE")]
    dead_queue: Option<String>,
    /// A note about the queue; an empty one is none.
    #[arg(long, value_name = "TEXT")]
    reference: Option<String>,
}

#[derive(Args)]
struct Delete {
    /// The name of the queue.
    #[arg(value_name = "QUEUE")]
    name: String,
    /// Does not ask.
    #[arg(long)]
    yes: bool,
}

#[derive(Args)]
struct Clear {
    /// The name of the queue.
    #[arg(value_name = "QUEUE")]
    name: String,
    #[command(flatten)]
    what: Cleared,
}

#[derive(Args)]
#[group(required = true, multiple = true)]
struct Cleared {
    /// Deletes messages that wait to be leased.
    #[arg(long)]
    ready: bool,
    /// Deletes messages that become ready later.
    #[arg(long)]
    scheduled: bool,
    /// Deletes messages that somebody is working on as well.
    #[arg(long, requires = "ready")]
    leased: bool,
}

pub(super) async fn run(queue: &Queue) -> Result<(), CliError> {
    let target = &queue.target;
    if let Verb::Delete(delete) = &queue.verb {
        confirm(delete)?;
    }
    let client = target.client().await?;
    match &queue.verb {
        Verb::Create(create) => {
            let _: Reply = client.call("/v1/queues.create", &create.info()).await?;
            target.tell(&json!({"queue_name": create.name, "created": true}), &format!("created '{}'", create.name))
        }
        Verb::List(list) => list.run(&client, target).await,
        Verb::Info(Name { name }) => {
            let info = info(&client, name).await?;
            if target.json { print_json(&info) } else { print(&settings(&info)) }
        }
        Verb::Update(Update { name, change }) => {
            let merged = merged(info(&client, name).await?, change);
            let _: Reply = client.call("/v1/queues.update", &merged).await?;
            target.tell(&json!({"queue_name": name, "updated": true}), &format!("updated '{name}'"))
        }
        Verb::Delete(Delete { name, .. }) => {
            let request = QueuesDeleteRequest { queue_name: name.clone(), ..QueuesDeleteRequest::default() };
            let _: Reply = client.call("/v1/queues.delete", &request).await?;
            target.tell(&json!({"queue_name": name, "deleted": true}), &format!("deleted '{name}'"))
        }
        Verb::Stats(Name { name }) => {
            let request = QueueStatsRequest { queue_name: name.clone() };
            let stats: QueueStatsResponse = client.call("/v1/queue.stats", &request).await?;
            if target.json { print_json(&stats) } else { print(&counts(&stats, client.is_shared())) }
        }
        Verb::Clear(clear) => {
            let _: Reply = client.call("/v1/queue.clear", &clear.request()).await?;
            target.tell(&json!({"queue_name": clear.name, "cleared": true}), &format!("cleared '{}'", clear.name))
        }
    }
}

impl Create {
    fn info(&self) -> QueueInfo {
        QueueInfo {
            queue_name: self.name.clone(),
            lease_timeout: wire(self.lease),
            expire_timeout: wire(self.expire),
            requested_partitions: self.partitions,
            max_attempts: self.max_attempts,
            dead_queue: self.dead_queue.clone().unwrap_or_default(),
            reference: self.reference.clone().unwrap_or_default(),
            namespace: self.namespace.clone().unwrap_or_default(),
            ..QueueInfo::default()
        }
    }
}

impl List {
    async fn run(&self, client: &Client, target: &Target) -> Result<(), CliError> {
        let request = QueuesListRequest {
            pivot: self.from.clone().unwrap_or_default(),
            limit: self.limit,
            namespace: self.namespace.clone().unwrap_or_default(),
        };
        let listed: QueuesListResponse = client.call("/v1/queues.list", &request).await?;
        if target.json {
            return print_json(&listed);
        }
        print(&queues(&listed.items))?;
        if let Some(last) = listed.items.last().filter(|_| listed.items.len() >= self.limit as usize) {
            eprintln!("there may be more: go on with --from {}", last.queue_name);
        }
        Ok(())
    }
}

impl Clear {
    fn request(&self) -> QueueClearRequest {
        QueueClearRequest {
            queue_name: self.name.clone(),
            queue: self.what.ready,
            scheduled: self.what.scheduled,
            destructive: self.what.leased,
        }
    }
}

async fn info(client: &Client, name: &str) -> Result<QueueInfo, CliError> {
    client.call("/v1/queues.info", &QueuesInfoRequest { queue_name: name.to_owned() }).await
}

/// What an update must say so that only `change` changes: the protocol keeps a time-out that is left out, and clears
/// everything else.
fn merged(info: QueueInfo, change: &Change) -> QueueInfo {
    QueueInfo {
        queue_name: info.queue_name,
        lease_timeout: change.lease.map(wire).unwrap_or_default(),
        expire_timeout: change.expire.map(wire).unwrap_or_default(),
        max_attempts: change.max_attempts.unwrap_or(info.max_attempts),
        dead_queue: change.dead_queue.clone().unwrap_or(info.dead_queue),
        reference: change.reference.clone().unwrap_or(info.reference),
        ..QueueInfo::default()
    }
}

/// Asks before a queue is deleted; where there is nobody to ask, the command line must have said it.
fn confirm(delete: &Delete) -> Result<(), CliError> {
    if delete.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(CliError::new(format!("'{}' would be deleted with everything in it", delete.name))
            .with_hint("say --yes if that is what you want"));
    }
    let mut answer = String::new();
    let mut prompt = std::io::stderr().lock();
    let asked = write!(prompt, "delete '{}' with everything in it? [y/N] ", delete.name)
        .and_then(|()| prompt.flush())
        .and_then(|()| std::io::stdin().read_line(&mut answer));
    asked.map_err(|error| CliError::new(format!("you cannot be asked: {error}")).with_hint("say --yes instead"))?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(CliError::new("nothing was deleted")),
    }
}

fn attempts(limit: i32) -> String {
    if limit == 0 { "no limit".to_owned() } else { limit.to_string() }
}

fn queues(queues: &[QueueInfo]) -> String {
    let rows: Vec<[String; 7]> = queues
        .iter()
        .map(|info| {
            [
                info.queue_name.clone(),
                info.requested_partitions.to_string(),
                info.lease_timeout.clone(),
                info.expire_timeout.clone(),
                attempts(info.max_attempts),
                or_dash(&info.dead_queue),
                shown(info.updated_at.as_ref()),
            ]
        })
        .collect();
    let header = ["queue", "partitions", "lease", "expire", "max attempts", "dead queue", "updated"];
    table(header, &[1, 2, 3, 4], &rows).to_string()
}

fn settings(info: &QueueInfo) -> String {
    let rows = [
        ("queue", info.queue_name.clone()),
        ("namespace", or_dash(&info.namespace)),
        ("partitions", info.requested_partitions.to_string()),
        ("lease", info.lease_timeout.clone()),
        ("expire", info.expire_timeout.clone()),
        ("max attempts", attempts(info.max_attempts)),
        ("dead queue", or_dash(&info.dead_queue)),
        ("reference", or_dash(&info.reference)),
        ("created", shown(info.created_at.as_ref())),
        ("updated", shown(info.updated_at.as_ref())),
    ];
    table(["setting", "value"], &[], &rows.map(|(name, value)| [name.to_owned(), value])).to_string()
}

/// The messages of every partition and of all together, and who waits, if others can wait at the same place.
fn counts(stats: &QueueStatsResponse, with_waiting: bool) -> String {
    let partitions = || stats.logical_queues.iter().flat_map(|queue| &queue.partitions);
    let mut rows: Vec<[String; 7]> = partitions()
        .map(|partition| {
            [
                partition.partition.to_string(),
                (partition.total - partition.total_leased).to_string(),
                partition.total_leased.to_string(),
                partition.scheduled.to_string(),
                partition.average_age.clone(),
                partition.average_leased_age.clone(),
                partition.failures.to_string(),
            ]
        })
        .collect();
    let all = |count: fn(&QueuePartitionStats) -> i32| -> i64 {
        partitions().map(|partition| i64::from(count(partition))).sum()
    };
    rows.push([
        "all".to_owned(),
        all(|partition| partition.total - partition.total_leased).to_string(),
        all(|partition| partition.total_leased).to_string(),
        all(|partition| partition.scheduled).to_string(),
        String::new(),
        String::new(),
        all(|partition| partition.failures).to_string(),
    ]);
    let header = ["partition", "ready", "leased", "scheduled", "average age", "average lease left", "failures"];
    let mut text = table(header, &[0, 1, 2, 3, 4, 5, 6], &rows).to_string();
    if with_waiting {
        text.push_str(&waiting(&stats.logical_queues));
    }
    text
}

fn waiting(queues: &[QueueLogicalStats]) -> String {
    let all =
        |count: fn(&QueueLogicalStats) -> i32| -> i64 { queues.iter().map(|queue| i64::from(count(queue))).sum() };
    format!(
        "\nwaiting: {} leases, {} produces, {} completes; in flight: {}",
        all(|queue| queue.lease_waiting),
        all(|queue| queue.produce_waiting),
        all(|queue| queue.complete_waiting),
        all(|queue| queue.in_flight)
    )
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::super::tests::complaint;
    use super::*;

    fn mail() -> QueueInfo {
        QueueInfo {
            queue_name: "mail".to_owned(),
            lease_timeout: "1m0s".to_owned(),
            expire_timeout: "24h0m0s".to_owned(),
            max_attempts: 5,
            dead_queue: "dead".to_owned(),
            reference: "note".to_owned(),
            requested_partitions: 4,
            ..QueueInfo::default()
        }
    }

    #[test]
    fn an_update_keeps_what_it_does_not_name() {
        let change = Change { lease: Some(Duration::from_secs(30)), ..Change::default() };
        let merged = merged(mail(), &change);
        assert_eq!((merged.queue_name.as_str(), merged.lease_timeout.as_str()), ("mail", "30s"));
        assert_eq!((merged.max_attempts, merged.dead_queue.as_str(), merged.reference.as_str()), (5, "dead", "note"));
        // The protocol keeps a time-out that is left out; one that it printed may be too long for it to read.
        assert_eq!((merged.expire_timeout.as_str(), merged.requested_partitions), ("", 0));
    }

    #[test]
    fn an_update_can_clear() {
        let change = Change {
            max_attempts: Some(0),
            dead_queue: Some(String::new()),
            reference: Some(String::new()),
            ..Change::default()
        };
        let merged = merged(mail(), &change);
        assert_eq!((merged.max_attempts, merged.dead_queue.as_str(), merged.reference.as_str()), (0, "", ""));
    }

    #[test]
    fn an_update_of_nothing_and_a_clear_of_nothing_are_refused() {
        let missing = Some(ErrorKind::MissingRequiredArgument);
        assert_eq!(complaint("tenure queue update mail"), missing);
        assert_eq!(complaint("tenure queue update mail --lease 30s --reference x"), None);
        assert_eq!(complaint("tenure queue clear mail"), missing);
        assert_eq!(complaint("tenure queue clear mail --ready --scheduled"), None);
    }

    #[test]
    fn leased_messages_are_cleared_only_with_the_ready_ones() {
        assert_eq!(complaint("tenure queue clear mail --leased"), Some(ErrorKind::MissingRequiredArgument));
        assert_eq!(complaint("tenure queue clear mail --ready --leased"), None);
    }

    #[test]
    fn a_queue_has_defaults_where_the_protocol_has_none() {
        let create = Create {
            name: "mail".to_owned(),
            lease: duration("1m").unwrap(),
            expire: duration("168h").unwrap(),
            partitions: 1,
            max_attempts: 0,
            dead_queue: None,
            reference: None,
            namespace: None,
        };
        let info = create.info();
        assert_eq!((info.lease_timeout.as_str(), info.expire_timeout.as_str()), ("1m0s", "168h0m0s"));
        assert_eq!(complaint("tenure queue create mail"), None);
    }

    #[test]
    fn counts_are_shown_for_every_partition_and_for_all() {
        let partition = |number, total, leased| QueuePartitionStats {
            partition: number,
            total,
            total_leased: leased,
            scheduled: 7,
            average_age: "1m0s".to_owned(),
            average_leased_age: "20s".to_owned(),
            ..QueuePartitionStats::default()
        };
        let logical = QueueLogicalStats {
            lease_waiting: 3,
            partitions: vec![partition(0, 10, 4), partition(1, 5, 0)],
            ..QueueLogicalStats::default()
        };
        let stats = QueueStatsResponse { queue_name: "mail".to_owned(), logical_queues: vec![logical] };
        let text = counts(&stats, true);
        let cells = |line: &str| -> Vec<String> {
            line.split('|').map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
        };
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(cells(lines[2]), ["0", "6", "4", "7", "1m0s", "20s", "0"]);
        assert_eq!(cells(lines[4]), ["all", "11", "4", "14", "0"]);
        assert_eq!(lines[5], "waiting: 3 leases, 0 produces, 0 completes; in flight: 0");
        assert!(!counts(&stats, false).contains("waiting"));
    }

    #[test]
    fn what_is_not_set_is_a_dash() {
        let text = settings(&QueueInfo { dead_queue: String::new(), max_attempts: 0, ..mail() });
        assert!(text.lines().any(|line| line.contains("dead queue") && line.contains("| - ")), "{text}");
        assert!(text.lines().any(|line| line.contains("max attempts") && line.contains("no limit")), "{text}");
        assert!(queues(&[mail()]).contains("24h0m0s"));
    }
}
