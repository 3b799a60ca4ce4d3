//! `tenure message`: what lies in a queue, without taking it.

use clap::{Args, Subcommand};

use super::show::{beginning, or_dash, payload, print, print_json_lines, table};
use super::when::shown;
use super::{CliError, Target};
use crate::client::Client;
use crate::wire::{StorageItem, StorageItemsListRequest, StorageItemsListResponse};

/// Messages in one call: a list may be long, and payloads large.
const PAGE: u64 = 500;
/// How much of a payload people see in a list.
const GLANCE: usize = 60;

/// Shows the messages of a queue without taking them.
#[derive(Args)]
pub struct Message {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    target: Target,
}

#[derive(Subcommand)]
enum Verb {
    /// Lists the messages of a partition in their order.
    List(List),
}

#[derive(Args)]
struct List {
    /// The queue.
    #[arg(value_name = "QUEUE")]
    queue: String,
    /// The partition.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
    partition: i32,
    /// Lists those that become ready later, instead of those that are ready or leased.
    #[arg(long)]
    scheduled: bool,
    /// Lists at most so many.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Lists all of them.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Begins at this id, which need not exist.
    #[arg(long, value_name = "ID")]
    from: Option<String>,
}

pub(super) async fn run(message: &Message) -> Result<(), CliError> {
    let client = message.target.client().await?;
    let Verb::List(list) = &message.verb;
    let mut pages = Pages::new(list);
    let mut rows = Vec::new();
    while let Some(items) = pages.next(&client).await? {
        if message.target.json {
            print_json_lines(&items)?;
        } else {
            rows.extend(items.iter().map(row));
        }
    }
    if message.target.json {
        return Ok(());
    }
    let header = ["id", "kind", "attempts", "leased until", "expires", "created", "payload"];
    print(&table(header, &[2], &rows).to_string())?;
    if pages.left == 0 {
        eprintln!("there may be more: go on with --from {}, or list --all", pages.pivot);
    }
    Ok(())
}

/// A list, page by page. The protocol begins a page with the id that it is asked to go on from.
struct Pages<'a> {
    list: &'a List,
    left: u64,
    pivot: String,
    /// Whether the pivot has been listed already.
    seen: bool,
    ended: bool,
}

impl<'a> Pages<'a> {
    fn new(list: &'a List) -> Self {
        let left = if list.all { u64::MAX } else { list.limit };
        Pages { list, left, pivot: list.from.clone().unwrap_or_default(), seen: false, ended: false }
    }

    async fn next(&mut self, client: &Client) -> Result<Option<Vec<StorageItem>>, CliError> {
        if self.ended || self.left == 0 {
            return Ok(None);
        }
        let wanted = self.left.min(PAGE);
        let limit = wanted + u64::from(self.seen);
        let path = if self.list.scheduled { "/v1/storage/scheduled.list" } else { "/v1/storage/items.list" };
        let request = StorageItemsListRequest {
            queue_name: self.list.queue.clone(),
            partition: self.list.partition,
            pivot: self.pivot.clone(),
            limit: i32::try_from(limit).unwrap_or(i32::MAX),
        };
        let listed: StorageItemsListResponse = client.call(path, &request).await?;
        let mut items = listed.items;
        self.ended = (items.len() as u64) < limit;
        if self.seen && items.first().is_some_and(|item| item.id == self.pivot) {
            items.remove(0);
        }
        // The pivot may have gone meanwhile: there is then one more than was wanted.
        items.truncate(usize::try_from(wanted).unwrap_or(usize::MAX));
        self.left -= items.len() as u64;
        if let Some(last) = items.last() {
            self.pivot.clone_from(&last.id);
            self.seen = true;
        }
        Ok(Some(items))
    }
}

fn row(item: &StorageItem) -> [String; 7] {
    [
        item.id.clone(),
        or_dash(&item.kind),
        item.attempts.to_string(),
        if item.is_leased { shown(item.lease_deadline.as_ref()) } else { "-".to_owned() },
        shown(item.expire_deadline.as_ref()),
        shown(item.created_at.as_ref()),
        beginning(&payload(&item.payload), GLANCE),
    ]
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Bytes;
    use axum::http::header::CONTENT_TYPE;
    use prost::Message as _;

    use super::*;

    /// A server with so many messages, whose ids are numbers of four digits.
    fn server(count: usize) -> Client {
        Client::Store(Router::new().fallback(move |body: Bytes| async move {
            let request = StorageItemsListRequest::decode(body).unwrap();
            let ids = (0..count).map(|n| format!("{n:04}")).filter(|id| *id >= request.pivot);
            let items = ids.take(request.limit as usize).map(|id| StorageItem { id, ..StorageItem::default() });
            let listed = StorageItemsListResponse { items: items.collect() };
            ([(CONTENT_TYPE, "application/protobuf")], listed.encode_to_vec())
        }))
    }

    async fn listed(list: &List, count: usize) -> Vec<String> {
        let (client, mut pages, mut ids) = (server(count), Pages::new(list), Vec::new());
        while let Some(items) = pages.next(&client).await.unwrap() {
            ids.extend(items.into_iter().map(|item| item.id));
        }
        ids
    }

    fn list(limit: Option<u64>) -> List {
        List {
            queue: "mail".to_owned(),
            partition: 0,
            scheduled: false,
            limit: limit.unwrap_or(100),
            all: limit.is_none(),
            from: None,
        }
    }

    #[tokio::test]
    async fn pages_join_without_a_gap_and_without_a_repeat() {
        for count in [0, 1, 499, 500, 501, 1000, 1700] {
            let expected: Vec<String> = (0..count).map(|n| format!("{n:04}")).collect();
            assert_eq!(listed(&list(None), count).await, expected);
        }
    }

    #[tokio::test]
    async fn a_limit_is_kept_across_pages() {
        for limit in [1, 100, 500, 501, 1200] {
            assert_eq!(listed(&list(Some(limit)), 1700).await.len() as u64, limit);
        }
        let ids = listed(&List { from: Some("0300".to_owned()), ..list(Some(2)) }, 1700).await;
        assert_eq!(ids, ["0300", "0301"]);
    }
}
