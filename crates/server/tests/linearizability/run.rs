//! One run: clients that do at the same time what a seed tells them, and what they saw.

use std::sync::Mutex;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::client::{Connection, LEASE, Server};
use crate::history::{Answer, Call, Item, Operation, Time};

/// Calls that the clients of a run make together.
const CALLS: u64 = 36;
/// How long a lease waits, on the real clock.
const PATIENCE: &str = "60ms";
/// How long anything else may take.
const TIMEOUT: &str = "30s";
/// Items in a produce or in a lease.
const BATCH: usize = 3;

/// How often a seed is run while the store stalls.
const RUNS: usize = 5;

/// Runs a seed on a queue of its own. Returns the history, in the order in which the calls began, and the number of the
/// queue's partitions.
///
/// A run in which the server gave up a lease before it had looked for items says nothing, and is repeated.
pub(crate) fn run(server: &Server, seed: u64) -> (Vec<Operation>, usize) {
    let runs = (0..RUNS).find_map(|run| run_once(server, seed, &format!("seed-{seed}-{run}")));
    runs.unwrap_or_else(|| panic!("seed {seed}: the store did not answer a lease in time in {RUNS} runs"))
}

/// None when the store did not answer in time.
fn run_once(server: &Server, seed: u64, queue: &str) -> Option<(Vec<Operation>, usize)> {
    let partitions = match seed % 5 {
        0 => 2,
        _ => 1,
    };
    let settings = json!({
        "queue_name": queue, "lease_timeout": LEASE, "expire_timeout": "10000h", "requested_partitions": partitions,
    });
    let mut connection = server.connect();
    let created = connection.call("queues.create", &settings).unwrap();
    assert_eq!(created.0, 200, "{created:?}");
    let began = server.now();
    let hands = Mutex::new(Hands::default());
    let count = 3 + seed % 2;
    let mut history: Vec<Operation> = std::thread::scope(|scope| {
        let work = |n: u64| {
            let mut client = Client::new(server, queue, n.to_string(), seed * 10 + n, &hands);
            (0..CALLS / count).for_each(|_| client.act());
            client.history
        };
        let clients: Vec<_> = (1..=count).map(|n| scope.spawn(move || work(n))).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let mut last = Client::new(server, queue, "last".to_owned(), seed * 10, &hands);
    last.clear_up();
    history.extend(last.history);
    // Those who move the clock look at every queue there is.
    history.extend(server.expiries(began));
    let deleted = connection.call("queues.delete", &json!({ "queue_name": queue })).unwrap();
    assert_eq!(deleted.0, 200, "{deleted:?}");
    history.sort_by_key(|operation| operation.began);
    let stalled = hands.into_inner().unwrap().stalled;
    (!stalled).then_some((history, partitions))
}

/// What the clients of a run have leased. Anybody may end any lease, and does.
#[derive(Default)]
struct Hands {
    /// By lease: the partition, and ids that nobody has used yet, in the order in which they came.
    held: Vec<(usize, Vec<String>)>,
    /// Ids that somebody has used, with their partition.
    used: Vec<(usize, String)>,
    /// Whether the server gave up a lease before it had looked for items.
    stalled: bool,
}

impl Hands {
    /// Some ids of one lease, perhaps with a used one behind them, or only a used one; sometimes there is nothing.
    ///
    /// Whatever is refused is then the first or the last of them. The protocol leaves what follows a refused id alone,
    /// and cases elsewhere see to that.
    fn choose(&mut self, rng: &mut StdRng) -> Option<(usize, Vec<String>)> {
        let used = match self.used.len() {
            0 => None,
            count => Some(self.used[rng.random_range(0..count)].clone()).filter(|_| rng.random_bool(0.3)),
        };
        if self.held.is_empty() || (used.is_some() && rng.random_bool(0.5)) {
            return used.map(|(partition, id)| (partition, vec![id]));
        }
        let n = rng.random_range(0..self.held.len());
        let (partition, held) = &mut self.held[n];
        let partition = *partition;
        let count = rng.random_range(1..=held.len());
        let mut ids: Vec<String> = held.drain(..count).collect();
        if held.is_empty() {
            self.held.swap_remove(n);
        }
        self.used.extend(ids.iter().map(|id| (partition, id.clone())));
        ids.extend(used.filter(|(of, _)| *of == partition).map(|(_, id)| id));
        Some((partition, ids))
    }
}

struct Client<'a> {
    server: &'a Server,
    connection: Connection,
    queue: &'a str,
    name: String,
    rng: StdRng,
    hands: &'a Mutex<Hands>,
    produced: usize,
    history: Vec<Operation>,
}

impl<'a> Client<'a> {
    fn new(server: &'a Server, queue: &'a str, name: String, seed: u64, hands: &'a Mutex<Hands>) -> Self {
        let (connection, rng) = (server.connect(), StdRng::seed_from_u64(seed));
        Client { server, connection, queue, name, rng, hands, produced: 0, history: Vec::new() }
    }

    /// Does something.
    fn act(&mut self) {
        match self.rng.random_range(0..1000) {
            0..300 => self.produce(),
            300..650 => {
                self.lease();
            }
            650..830 => self.complete(),
            830..975 => self.retry(),
            _ => self.server.expire(&mut self.connection, self.queue),
        }
    }

    fn produce(&mut self) {
        let first = self.produced;
        self.produced += self.rng.random_range(1..=BATCH);
        let items: Vec<String> = (first..self.produced).map(|n| format!("{}.{n}", self.name)).collect();
        let payloads: Vec<Value> = items.iter().map(|item| json!({ "utf8": item })).collect();
        let request = json!({ "queue_name": self.queue, "request_timeout": TIMEOUT, "items": payloads });
        self.change(Call::Produce(items), "queue.produce", &request);
    }

    fn complete(&mut self) {
        let chosen = self.hands.lock().unwrap().choose(&mut self.rng);
        if let Some((partition, ids)) = chosen {
            self.complete_these(partition, ids);
        }
    }

    fn complete_these(&mut self, partition: usize, ids: Vec<String>) {
        let request =
            json!({ "queue_name": self.queue, "partition": partition, "request_timeout": TIMEOUT, "ids": ids });
        self.change(Call::Complete { partition, ids }, "queue.complete", &request);
    }

    fn retry(&mut self) {
        let chosen = self.hands.lock().unwrap().choose(&mut self.rng);
        let Some((partition, ids)) = chosen else { return };
        let items: Vec<Value> = ids.iter().map(|id| json!({ "id": id })).collect();
        let request = json!({ "queue_name": self.queue, "partition": partition, "items": items });
        self.change(Call::Retry { partition, ids }, "queue.retry", &request);
    }

    /// Makes a call that changes something, and takes note of it.
    fn change(&mut self, call: Call, rpc: &str, request: &Value) {
        let began = self.server.now();
        let answer = match self.connection.call(rpc, request) {
            Ok((200, _)) => Answer::Done,
            Ok((400, body)) => Answer::Refused { id: self.refused(&call, &body) },
            Ok((code @ (454 | 500), body)) => Answer::Unknown(format!("{code} {body}")),
            Ok((code, body)) => panic!("{}: {call} was answered {code} {body}", self.queue),
            Err(error) => {
                self.connection = self.server.connect();
                Answer::Unknown(error.to_string())
            }
        };
        self.note(began, call, answer);
    }

    /// The id that a refusal names: the only one in quotes.
    fn refused(&self, call: &Call, body: &Value) -> String {
        let named = body["message"].as_str().unwrap_or_default().split('\'').nth(1).unwrap_or_default();
        let asked = match call {
            Call::Complete { ids, .. } | Call::Retry { ids, .. } => ids.iter().any(|id| id == named),
            _ => false,
        };
        assert!(asked, "{}: {call} was refused: {body}", self.queue);
        named.to_owned()
    }

    /// Leases something. Returns whether there was anything.
    fn lease(&mut self) -> bool {
        let batch = self.rng.random_range(1..=BATCH);
        let request = json!({
            "queue_name": self.queue, "batch_size": batch, "client_id": self.name, "request_timeout": PATIENCE,
        });
        let answered = {
            let _leasing = self.server.leasing.read().unwrap();
            let began = self.server.now();
            let answer = match self.connection.call("queue.lease", &request).unwrap() {
                (200, body) => leased(&body),
                (454, body) if says(&body, "no items are in the queue") => Answer::Empty,
                (454, body) if says(&body, "the store did not answer in time") => {
                    self.hands.lock().unwrap().stalled = true;
                    return false;
                }
                (code, body) => panic!("{}: a lease was answered {code} {body}", self.queue),
            };
            self.note(began, Call::Lease { batch }, answer.clone());
            answer
        };
        if let Answer::Leased { partition, items } = answered {
            let ids = items.into_iter().map(|item| item.id).collect();
            self.hands.lock().unwrap().held.push((partition, ids));
            return true;
        }
        false
    }

    fn note(&mut self, began: Time, call: Call, answer: Answer) {
        let (client, ended) = (self.name.clone(), self.server.now());
        self.history.push(Operation { client, began, ended, call, answer });
    }

    /// Completes what is still leased, and leases whatever there is: what was lost is then missed.
    fn clear_up(&mut self) {
        let held = std::mem::take(&mut self.hands.lock().unwrap().held);
        for (partition, ids) in held {
            for id in ids {
                self.complete_these(partition, vec![id]);
            }
        }
        while self.lease() {}
    }
}

fn says(body: &Value, what: &str) -> bool {
    body["message"].as_str().is_some_and(|message| message.contains(what))
}

fn leased(body: &Value) -> Answer {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let item = |item: &Value| Item {
        payload: String::from_utf8(STANDARD.decode(text(&item["bytes"])).unwrap()).unwrap(),
        id: text(&item["id"]),
        attempts: number(&item["attempts"]) as u32,
    };
    let items = body["items"].as_array().map_or_else(Vec::new, |items| items.iter().map(item).collect());
    Answer::Leased { partition: number(&body["partition"]) as usize, items }
}
