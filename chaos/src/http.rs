//! Produces and leases over HTTP, against a server that is a process of its own.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, SecondsFormat};
use rand::Rng as _;
use serde_json::{Value, json};
use tenure_chaos::history::{Answer, Finish, Item, Leased, Micros, Op, Verb, now};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::job::{Failure, LEASE, WEB, WIDE, Worker};

/// What a produce and a complete ask for.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long a lease waits for messages.
const WAIT: Duration = Duration::from_secs(1);
/// After this the client gives up: long after the server should have answered.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn run(worker: &Arc<Worker>) {
    let mut tasks = JoinSet::new();
    for (task, queue) in [(0, WEB), (1, WIDE)] {
        tasks.spawn(produce(worker.clone(), queue, task));
    }
    for (task, queue) in [(2, WEB), (3, WEB), (4, WIDE)] {
        tasks.spawn(consume(worker.clone(), queue, task, false));
    }
    tasks.join_all().await;
}

/// Completes everything, until told to stop.
pub(crate) async fn drain(worker: &Arc<Worker>) {
    let mut tasks = JoinSet::new();
    for (task, queue) in [(0, WEB), (1, WIDE)] {
        tasks.spawn(consume(worker.clone(), queue, task, true));
    }
    tasks.join_all().await;
}

async fn produce(worker: Arc<Worker>, queue: &'static str, task: u64) {
    let mut random = worker.random(task);
    let mut client = Client::new(&worker.job.place);
    let name = format!("{}/{queue}", worker.job.process);
    let mut number = 0;
    while worker.goes_on() {
        let count = random.random_range(1..=3);
        let items: Vec<Item> = (number..number + count)
            .map(|number| Item {
                uid: format!("{name}/{number}"),
                queue: queue.to_owned(),
                stream: (queue == WEB).then(|| name.clone()),
                number,
                key: None,
            })
            .collect();
        number += count;
        let texts: Vec<Value> = items.iter().map(|item| json!({ "utf8": json!(item).to_string() })).collect();
        let body = json!({ "queue_name": queue, "request_timeout": "2s", "items": texts });
        let op = Op::Enqueue { items };
        let produced = worker.call(op, TIMEOUT, client.done("queue.produce", &body), |()| Answer::Done).await;
        let rest = if produced.is_some() { random.random_range(10..50) } else { 200 };
        worker.rest(Duration::from_millis(rest)).await;
    }
}

async fn consume(worker: Arc<Worker>, queue: &'static str, task: u64, draining: bool) {
    let mut random = worker.random(task);
    let mut client = Client::new(&worker.job.place);
    while worker.goes_on() {
        let batch = if draining { 50 } else { random.random_range(1..=5) };
        let id = format!("{}-{task}", worker.job.process);
        let body = json!({ "queue_name": queue, "client_id": id, "batch_size": batch, "request_timeout": "1s" });
        let op = Op::Lease { queue: queue.to_owned() };
        let act = async {
            let (status, answer) = client.call("queue.lease", &body).await?;
            match status {
                200 => leases(&worker, &answer),
                454 if answer["message"].as_str().is_some_and(|text| text.contains("no items")) => Ok(Vec::new()),
                _ => Err(format!("{status}: {answer}").into()),
            }
        };
        let answer = |found: &Vec<Held>| Answer::Leased(found.iter().map(|held| held.lease.clone()).collect());
        let Some(found) = worker.call(op, WAIT, act, answer).await else {
            worker.rest(Duration::from_millis(200)).await;
            continue;
        };
        if found.is_empty() {
            continue;
        }
        let choice = if draining { 99 } else { random.random_range(0..100) };
        finish(&worker, &mut client, queue, &found, choice).await;
    }
}

/// A leased message: its id on the wire, its partition, and the lease.
struct Held {
    id: String,
    partition: i64,
    lease: Leased,
}

fn leases(worker: &Worker, answer: &Value) -> std::result::Result<Vec<Held>, Failure> {
    let items = answer["items"].as_array().ok_or("a lease without items")?;
    let partition = answer["partition"].as_i64().unwrap_or_default();
    let held = |item: &Value| {
        let payload = STANDARD.decode(item["bytes"].as_str().unwrap_or_default())?;
        let until = micros_of(item["lease_deadline"].as_str().unwrap_or_default())?;
        let lease = Leased {
            lease: worker.recorder.number(),
            uid: serde_json::from_slice::<Item>(&payload).map_or_else(|_| "unreadable".to_owned(), |item| item.uid),
            // The id on the wire is good for one delivery only.
            id: None,
            attempt: item["attempts"].as_i64().unwrap_or_default(),
            from: until - tenure_chaos::history::micros(LEASE),
            until: Some(until),
        };
        Ok(Held { id: item["id"].as_str().unwrap_or_default().to_owned(), partition, lease })
    };
    items.iter().map(held).collect()
}

async fn finish(worker: &Worker, client: &mut Client, queue: &str, held: &[Held], choice: u32) {
    tokio::time::sleep(Duration::from_millis(rand::random_range(0..30))).await;
    let ids: Vec<&str> = held.iter().map(|held| held.id.as_str()).collect();
    let partition = held[0].partition;
    let retry = |more: Value| {
        let item = |id: &&str| {
            let mut item = more.clone();
            item["id"] = json!(id);
            item
        };
        let items: Vec<Value> = ids.iter().map(item).collect();
        ("queue.retry", json!({ "queue_name": queue, "partition": partition, "items": items }))
    };
    let (verb, (path, body), within) = match choice {
        // Forgotten: the leases expire.
        0..4 => return,
        4..10 => (Verb::Return, retry(json!({})), worker.job.limit),
        10..14 => (Verb::Return, retry(json!({ "retry_at": time(now() + 400_000) })), worker.job.limit),
        14..17 => (Verb::Bury, retry(json!({ "dead": true })), worker.job.limit),
        _ => {
            if choice < 20 {
                // Too late: the leases have expired.
                tokio::time::sleep(LEASE + Duration::from_millis(500)).await;
            }
            let body = json!({ "queue_name": queue, "partition": partition, "request_timeout": "2s", "ids": ids });
            (Verb::Complete, ("queue.complete", body), TIMEOUT)
        }
    };
    let op = Op::Finish { verb, leases: held.iter().map(|held| held.lease.lease).collect() };
    let act = async {
        let (status, answer) = client.call(path, &body).await?;
        match status {
            200 => Ok(vec![Finish::Done; ids.len()]),
            400 => refused(&ids, &answer),
            _ => Err(format!("{status}: {answer}").into()),
        }
    };
    worker.call(op, within, act, |answers| Answer::Finished(answers.clone())).await;
}

/// Ids before the first that was refused are done, and those after it are untouched.
fn refused(ids: &[&str], answer: &Value) -> std::result::Result<Vec<Finish>, Failure> {
    let text = answer["message"].as_str().unwrap_or_default();
    let first = ids.iter().position(|id| text.contains(id)).ok_or_else(|| format!("400: {text}"))?;
    let finish = |place: usize| match place.cmp(&first) {
        std::cmp::Ordering::Less => Finish::Done,
        std::cmp::Ordering::Equal => Finish::Lost,
        std::cmp::Ordering::Greater => Finish::Untouched,
    };
    Ok((0..ids.len()).map(finish).collect())
}

fn micros_of(text: &str) -> std::result::Result<Micros, Failure> {
    Ok(DateTime::parse_from_rfc3339(text)?.timestamp_micros())
}

/// A time in the form that the server reads.
fn time(micros: Micros) -> String {
    let time = DateTime::from_timestamp_micros(micros).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// A keep-alive connection that is made again when it is lost.
pub(crate) struct Client {
    address: String,
    stream: Option<TcpStream>,
}

impl Client {
    pub(crate) fn new(address: &str) -> Self {
        Client { address: address.to_owned(), stream: None }
    }

    /// A call that must be answered with 200.
    pub(crate) async fn done(&mut self, path: &str, body: &Value) -> std::result::Result<(), Failure> {
        match self.call(path, body).await? {
            (200, _) => Ok(()),
            (status, answer) => Err(format!("{status}: {answer}").into()),
        }
    }

    pub(crate) async fn call(&mut self, path: &str, body: &Value) -> std::result::Result<(u16, Value), Failure> {
        let answered = tokio::time::timeout(PATIENCE, self.exchange(path, body)).await;
        let result = answered.unwrap_or_else(|_| Err("the server did not answer at all".into()));
        if result.is_err() {
            self.stream = None;
        }
        result
    }

    async fn exchange(&mut self, path: &str, body: &Value) -> std::result::Result<(u16, Value), Failure> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => TcpStream::connect(&self.address).await?,
        };
        stream.set_nodelay(true)?;
        let body = body.to_string();
        let (length, address) = (body.len(), &self.address);
        let head = format!("POST /v1/{path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n");
        stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes()).await?;
        let mut received = Vec::new();
        loop {
            if stream.read_buf(&mut received).await? == 0 {
                return Err("the server closed the connection".into());
            }
            if let Some((status, answer)) = parse(&received)? {
                self.stream = Some(stream);
                return Ok((status, answer));
            }
        }
    }
}

/// An answer; none: there is more to come.
fn parse(received: &[u8]) -> std::result::Result<Option<(u16, Value)>, Failure> {
    let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let mut lines = std::str::from_utf8(&received[..end])?.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).ok_or("an answer without a status")?;
    let mut headers = lines.filter_map(|line| line.split_once(':'));
    let length = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: usize = length.ok_or("an answer without a length")?.1.trim().parse()?;
    let body = &received[end + 4..];
    if body.len() < length {
        return Ok(None);
    }
    Ok(Some((status.parse()?, serde_json::from_slice(&body[..length])?)))
}
