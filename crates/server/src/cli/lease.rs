//! `tenure lease`: takes messages and prints them.
//!
//! Invariant: a message is completed only after it has been printed, so that one that nobody saw comes again.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::finish::complete;
use super::show::{or_dash, payload, print, print_json_lines, table};
use super::when::{duration, shown, wire};
use super::{CliError, Target};
use crate::client::Client;
use crate::wire::{QueueLeaseItem, QueueLeaseRequest, QueueLeaseResponse, ksuid};

/// Takes messages out of a queue for a while, and prints them.
#[derive(Args)]
pub struct Lease {
    /// The queue.
    #[arg(value_name = "QUEUE")]
    queue: String,
    /// Takes at most so many at a time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    count: i32,
    /// Waits so long for the first one.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    wait: Duration,
    /// Who takes them; made of the machine's name, the process and chance when it is not given.
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// Completes them once they are printed.
    #[arg(long)]
    complete: bool,
    /// Goes on taking messages until it is stopped.
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(lease: &Lease) -> Result<(), CliError> {
    let client = lease.target.client().await?;
    let request = QueueLeaseRequest {
        queue_name: lease.queue.clone(),
        batch_size: lease.count,
        client_id: lease.client_id.clone().unwrap_or_else(client_id),
        request_timeout: wire(lease.wait),
    };
    loop {
        match client.call::<_, QueueLeaseResponse>("/v1/queue.lease", &request).await {
            Ok(leased) => deliver(&client, lease, &leased).await?,
            Err(error) if lease.follow && error.is_empty_queue() => {}
            Err(error) => return Err(error),
        }
        if !lease.follow {
            return Ok(());
        }
    }
}

async fn deliver(client: &Client, lease: &Lease, leased: &QueueLeaseResponse) -> Result<(), CliError> {
    if lease.target.json {
        let lines: Vec<Value> = leased.items.iter().map(|item| document(leased.partition, item)).collect();
        print_json_lines(&lines)?;
    } else {
        print(&messages(leased))?;
    }
    if lease.complete {
        let ids: Vec<String> = leased.items.iter().map(|item| item.id.clone()).collect();
        complete(client, &lease.queue, leased.partition, &ids).await?;
    }
    Ok(())
}

/// A message for machines: as the protocol writes it, with its partition, and with its payload under the name by
/// which it could be produced again: `utf8` when it is text, else `bytes`.
fn document(partition: i32, item: &QueueLeaseItem) -> Value {
    let mut document = json!(item);
    if let Some(fields) = document.as_object_mut() {
        fields.insert("partition".to_owned(), partition.into());
        if let Ok(text) = std::str::from_utf8(&item.bytes) {
            fields.remove("bytes");
            fields.insert("utf8".to_owned(), text.into());
        }
    }
    document
}

fn messages(leased: &QueueLeaseResponse) -> String {
    let rows: Vec<[String; 6]> = leased
        .items
        .iter()
        .map(|item| {
            [
                leased.partition.to_string(),
                item.id.clone(),
                item.attempts.to_string(),
                shown(item.lease_deadline.as_ref()),
                or_dash(&item.kind),
                payload(&item.bytes),
            ]
        })
        .collect();
    table(["partition", "id", "attempt", "leased until", "kind", "payload"], &[0, 2], &rows).to_string()
}

/// A name that no other process has at the same time: a server takes only one waiting lease of each.
fn client_id() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    let host = host.map(|host| host.trim().to_owned()).filter(|host| !host.is_empty());
    let random = ksuid::random();
    let tail = &random[random.len().saturating_sub(8)..];
    format!("{}-{}-{tail}", host.as_deref().unwrap_or("tenure"), std::process::id())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn item(bytes: &'static [u8]) -> QueueLeaseItem {
        QueueLeaseItem {
            id: "x".to_owned(),
            attempts: 1,
            bytes: Bytes::from_static(bytes),
            ..QueueLeaseItem::default()
        }
    }

    #[test]
    fn machines_get_text_as_text_and_the_rest_in_base64() {
        assert_eq!(document(3, &item(b"hi")), json!({"id": "x", "attempts": 1, "partition": 3, "utf8": "hi"}));
        assert_eq!(document(0, &item(b"\xff")), json!({"id": "x", "attempts": 1, "partition": 0, "bytes": "/w=="}));
        assert_eq!(document(0, &item(b"")), json!({"id": "x", "attempts": 1, "partition": 0, "utf8": ""}));
    }

    #[test]
    fn people_see_what_a_complete_needs() {
        let leased = QueueLeaseResponse { partition: 3, items: vec![item(b"hi")], ..QueueLeaseResponse::default() };
        let text = messages(&leased);
        let cells: Vec<&str> = text.lines().nth(2).unwrap().split('|').map(str::trim).collect();
        assert_eq!(cells[1..7], ["3", "x", "1", "-", "-", "hi"]);
    }

    #[test]
    fn two_client_ids_differ() {
        assert_ne!(client_id(), client_id());
    }
}
