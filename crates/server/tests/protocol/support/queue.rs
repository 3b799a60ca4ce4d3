//! The words of the protocol, as the cases use them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::api::{Api, refusal};
use super::text::{number, payload, text};
use super::{eventually, unique};

/// What a lease handed out.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) partition: i64,
    pub(crate) items: Vec<Value>,
}

impl Lease {
    pub(crate) fn of(answer: &Value) -> Self {
        Lease { partition: number(answer, "partition"), items: list(answer) }
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        ids(&self.items)
    }

    pub(crate) fn texts(&self) -> Vec<String> {
        texts(&self.items)
    }

    /// The id of the only item.
    pub(crate) fn id(&self) -> String {
        assert_eq!(self.items.len(), 1, "{self:?}");
        text(&self.items[0], "id")
    }
}

/// The items of an answer; none when they are left out.
pub(crate) fn list(answer: &Value) -> Vec<Value> {
    answer["items"].as_array().cloned().unwrap_or_default()
}

pub(crate) fn ids(items: &[Value]) -> Vec<String> {
    items.iter().map(|item| text(item, "id")).collect()
}

pub(crate) fn texts(items: &[Value]) -> Vec<String> {
    items.iter().map(payload).collect()
}

/// What must be said about a queue, and what may be said besides.
pub(crate) fn settings(name: &str, more: &Value) -> Value {
    let mut request = json!({
        "queue_name": name, "lease_timeout": "1m", "expire_timeout": "24h", "requested_partitions": 1,
    });
    for (field, value) in more.as_object().unwrap() {
        request[field] = value.clone();
    }
    request
}

impl Api {
    /// Creates a queue with a name of its own.
    pub(crate) async fn queue(&self, more: &Value) -> String {
        let name = unique("queue");
        self.done("queues.create", &settings(&name, more)).await;
        name
    }

    /// Creates a queue with one partition and nothing special.
    pub(crate) async fn plain_queue(&self) -> String {
        self.queue(&json!({})).await
    }

    pub(crate) async fn produce(&self, queue: &str, texts: &[&str]) {
        let items: Vec<Value> = texts.iter().map(|text| json!({ "utf8": text })).collect();
        self.produce_items(queue, &items).await;
    }

    pub(crate) async fn produce_items(&self, queue: &str, items: &[Value]) {
        let request = json!({ "queue_name": queue, "request_timeout": "1m", "items": items });
        self.done("queue.produce", &request).await;
    }

    /// Produces the texts "0", "1" and so on, in as few requests as possible.
    pub(crate) async fn produce_numbers(&self, queue: &str, count: usize) {
        let all: Vec<Value> = (0..count).map(|n| json!({ "utf8": n.to_string() })).collect();
        for items in all.chunks(1000) {
            self.produce_items(queue, items).await;
        }
    }

    /// Leases what must be there, or must come soon.
    pub(crate) async fn lease(&self, queue: &str, batch: usize) -> Lease {
        Lease::of(&self.ok("queue.lease", &lease_request(queue, &unique("client"), batch)).await)
    }

    /// Nobody gets anything now.
    pub(crate) async fn nothing_to_lease(&self, queue: &str) {
        let mut request = lease_request(queue, &unique("client"), 1);
        request["request_timeout"] = "300ms".into();
        self.finds_nothing(&request).await;
    }

    /// A lease that must find nothing until its time is up: how long it waited. It is asked for again when the machine stalled,
    /// and its look was not over in time.
    pub(crate) async fn finds_nothing(&self, request: &Value) -> Duration {
        let cut_short = refusal(454, "request timeout; the store did not answer in time, try again");
        for _ in 0..10 {
            let started = Instant::now();
            let (status, answer) = self.call("queue.lease", request).await;
            if answer != cut_short {
                let nothing = refusal(454, "request timeout; no items are in the queue, try again");
                assert_eq!((status, answer), (454, nothing), "{request}");
                return started.elapsed();
            }
        }
        panic!("the store did not answer any of ten leases in time: {request}");
    }

    /// A lease that waits in the background.
    pub(crate) fn lease_later(&self, queue: &str, client: &str, batch: usize) -> JoinHandle<(u16, Value)> {
        let (api, request) = (self.clone(), lease_request(queue, client, batch));
        tokio::spawn(async move { api.call("queue.lease", &request).await })
    }

    /// Waits until so many leases wait.
    pub(crate) async fn waiting(&self, queue: &str, count: i64) {
        let look = async || (number(&self.stats(queue).await, "lease_waiting") == count).then_some(());
        eventually(&format!("{count} leases wait"), look).await;
    }

    pub(crate) async fn complete(&self, queue: &str, partition: i64, ids: &[String]) {
        self.done("queue.complete", &complete_request(queue, partition, ids)).await;
    }

    pub(crate) async fn retry(&self, queue: &str, partition: i64, items: &Value) {
        let request = json!({ "queue_name": queue, "partition": partition, "items": items });
        self.done("queue.retry", &request).await;
    }

    /// Ready and leased items of a partition.
    pub(crate) async fn items(&self, queue: &str, partition: i64) -> Vec<Value> {
        list(&self.ok("storage/items.list", &list_request(queue, partition)).await)
    }

    pub(crate) async fn scheduled(&self, queue: &str, partition: i64) -> Vec<Value> {
        list(&self.ok("storage/scheduled.list", &list_request(queue, partition)).await)
    }

    /// The items as they were stored.
    pub(crate) async fn import(&self, queue: &str, partition: i64, items: &Value) -> Vec<Value> {
        let request = json!({ "queue_name": queue, "partition": partition, "items": items });
        list(&self.ok("storage/items.import", &request).await)
    }

    /// The one entry of `logicalQueues`.
    pub(crate) async fn stats(&self, queue: &str) -> Value {
        let answer = self.ok("queue.stats", &json!({ "queue_name": queue })).await;
        assert_eq!(answer["queue_name"], queue);
        let entries = answer["logicalQueues"].as_array().unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(entries.len(), 1, "{answer}");
        entries[0].clone()
    }

    /// How many items each partition holds, and how many of them are leased.
    pub(crate) async fn totals(&self, queue: &str) -> Vec<(i64, i64)> {
        let stats = self.stats(queue).await;
        let partitions = stats["partitions"].as_array().cloned().unwrap_or_default();
        partitions.iter().map(|partition| (number(partition, "total"), number(partition, "total_leased"))).collect()
    }

    pub(crate) async fn info(&self, queue: &str) -> Value {
        self.ok("queues.info", &json!({ "queue_name": queue })).await
    }

    /// Only with `--test-hooks`.
    pub(crate) async fn pause(&self, queue: &str, pause: bool) {
        self.ok("test/queue.pause", &json!({ "queue_name": queue, "pause": pause })).await;
    }
}

/// The request waits for a while.
pub(crate) fn lease_request(queue: &str, client: &str, batch: usize) -> Value {
    json!({ "queue_name": queue, "client_id": client, "batch_size": batch, "request_timeout": "1m" })
}

pub(crate) fn complete_request(queue: &str, partition: i64, ids: &[String]) -> Value {
    json!({ "queue_name": queue, "partition": partition, "request_timeout": "1m", "ids": ids })
}

pub(crate) fn list_request(queue: &str, partition: i64) -> Value {
    json!({ "queue_name": queue, "partition": partition, "limit": 100_000 })
}
