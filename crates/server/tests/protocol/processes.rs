//! Processes that end, and several at once: what was acknowledged is there, nothing is handed out twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::api::{Api, Connection, JSON, refusal, request};
use crate::support::queue::{Lease, complete_request, lease_request, settings, texts};
use crate::support::text::{SECOND, now, number, payload, text, time};
use crate::support::{Backend, Place, Server, eventually, unique};

/// Everything that is known about some queues.
async fn snapshot(api: &Api, queues: &[&str]) -> Vec<Value> {
    let mut all = Vec::new();
    for queue in queues {
        all.push(api.info(queue).await);
        for partition in 0..2 {
            all.extend(api.items(queue, partition).await);
            all.extend(api.scheduled(queue, partition).await);
        }
    }
    all
}

/// What was there before the server ended is there after it has started again.
async fn data_survives(backend: Backend, end: impl AsyncFnOnce(&mut Server)) {
    let place = Place::new(backend);
    let mut server = place.start(&[]);
    let api = server.api();
    let space = unique("space");
    api.done("namespaces.create", &json!({ "name": space, "description": "kept" })).await;
    let more = json!({ "requested_partitions": 2, "namespace": space, "max_attempts": 3, "lease_timeout": "1h" });
    let full = api.queue(&more).await;
    let empty = api.queue(&json!({ "requested_partitions": 2 })).await;
    for _ in 0..4 {
        api.produce_numbers(&full, 10).await;
    }
    let later = json!({ "utf8": "later", "enqueue_at": time(now() + 3600 * SECOND) });
    api.produce_items(&full, &[later]).await;
    let held = api.lease(&full, 7).await;
    let done = api.lease(&full, 3).await;
    api.complete(&full, done.partition, &done.ids()).await;
    let before = snapshot(&api, &[&full, &empty]).await;
    end(&mut server).await;
    drop(server);

    let server = place.start(&[]);
    let api = server.api();
    assert_eq!(snapshot(&api, &[&full, &empty]).await, before);
    let spaces = api.ok("namespaces.list", &json!({ "pivot": space, "limit": 1 })).await;
    assert_eq!(spaces["items"][0]["description"], "kept");
    // What was leased still is, and can be completed by whoever knows its id.
    api.complete(&full, held.partition, &held.ids()).await;
    api.produce(&empty, &["first"]).await;
    api.produce(&full, &["new"]).await;
    let mut items = [api.items(&full, 0).await, api.items(&full, 1).await].concat();
    items.sort_by_key(|item| text(item, "id"));
    assert_eq!((items.len(), payload(&items[30])), (31, "new".to_owned()), "new items line up behind the old");
}

pub(crate) async fn data_survives_a_kill(backend: Backend) {
    data_survives(backend, async |server: &mut Server| server.kill()).await;
}

pub(crate) async fn data_survives_a_stop(backend: Backend) {
    data_survives(backend, async |server: &mut Server| {
        server.terminate();
        assert!(server.ended().await.success());
    })
    .await;
}

/// After a stop the file can be copied alone.
pub(crate) async fn a_stop_leaves_everything_in_the_file_itself(backend: Backend) {
    let place = Place::new(backend);
    let mut server = place.start(&[]);
    let api = server.api();
    let queue = api.plain_queue().await;
    api.produce(&queue, &["kept"]).await;
    assert!(place.file("tenure.db-wal").metadata().unwrap().len() > 0);
    server.terminate();
    assert!(server.ended().await.success());
    assert_eq!(place.file("tenure.db-wal").metadata().map_or(0, |log| log.len()), 0);
    let said = std::fs::read_to_string(place.file("log")).unwrap();
    assert!(!said.contains("orderly"), "{said}");
}

/// Rows that mean nothing any more are removed by a server soon after its start.
pub(crate) async fn a_server_does_the_housekeeping_of_its_store(backend: Backend) {
    use tenure_store::{Claim, Clock, Fence, Message, NewMessage, Settings, Store};
    let place = Place::new(backend);
    let two_days_ago = now() / 1000 - 2 * 86_400_000_000;
    let past = Store::connect_with_clock(&place.dsn, Clock::fixed(two_days_ago)).await.unwrap();
    past.install().await.unwrap();
    let settings = Settings { retain_completed: Some(Duration::from_secs(60)), ..Settings::default() };
    let queue = past.queue_create("old", settings).await.unwrap();
    past.worker_register("crashed", None).await.unwrap();
    let once = |n: i32| NewMessage { dedupe: Some(n.to_string()), ..NewMessage::new("x") };
    past.enqueue(&queue, None, (0..1_500).map(once).collect()).await.unwrap();
    let taken = [
        past.claim(Claim::from_queue(&queue, 1_000)).await.unwrap(),
        past.claim(Claim::from_queue(&queue, 1_000)).await.unwrap(),
    ]
    .concat();
    let fences: Vec<Fence> = taken.iter().map(Message::fence).collect();
    assert_eq!((fences.len(), past.complete(&fences).await.unwrap().len()), (1_500, 1_500));
    drop(past);

    let _server = place.start(&[]);
    let store = Store::connect(&place.dsn).await.unwrap();
    // The workers are the last step of a round.
    eventually("a round of housekeeping", async || {
        store.worker_list(None, None).await.unwrap().is_empty().then_some(())
    })
    .await;
    assert_eq!((store.archive_count(queue.id).await.unwrap(), store.forget().await.unwrap()), ((0, 0), 0));
}

/// What the clients of a queue were told.
#[derive(Default)]
struct Told {
    /// Texts whose production was acknowledged.
    produced: BTreeSet<String>,
    /// Texts whose completion was acknowledged.
    completed: BTreeSet<String>,
    /// Texts whose completion was asked for and never answered.
    unsure: BTreeSet<String>,
    /// Messages of refusals.
    refusals: BTreeSet<String>,
}

type Log = Arc<Mutex<Told>>;

/// Notes a refusal; whether to go on.
fn goes_on(log: &Log, status: u16, answer: &Value) -> bool {
    if status == 454 {
        return true;
    }
    assert_eq!(status, 453, "{answer}");
    log.lock().unwrap().refusals.insert(answer["message"].as_str().unwrap().to_owned());
    false
}

/// Produces one item after the other until the server has gone.
async fn produce_on(api: Api, queue: String, name: usize, log: Log) {
    for n in 0.. {
        let text = format!("{name}-{n}");
        let body = json!({ "queue_name": queue, "request_timeout": "10s", "items": [{ "utf8": text }] });
        match api.try_call("queue.produce", &body).await {
            Ok((200, _)) => {
                log.lock().unwrap().produced.insert(text);
            }
            Ok((status, answer)) if !goes_on(&log, status, &answer) => return,
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

/// Leases and completes until the server has gone.
async fn consume_on(api: Api, queue: String, name: usize, log: Log) {
    loop {
        let request = lease_request(&queue, &format!("consumer-{name}"), 5);
        let lease = match api.try_call("queue.lease", &request).await {
            Ok((200, answer)) => Lease::of(&answer),
            Ok((status, answer)) if !goes_on(&log, status, &answer) => return,
            Ok(_) => continue,
            Err(_) => return,
        };
        let request = complete_request(&queue, lease.partition, &lease.ids());
        match api.try_call("queue.complete", &request).await {
            Ok((200, _)) => log.lock().unwrap().completed.extend(lease.texts()),
            Ok((status, answer)) if !goes_on(&log, status, &answer) => return,
            Ok(_) => {}
            Err(_) => return log.lock().unwrap().unsure.extend(lease.texts()),
        }
    }
}

/// Everything that was acknowledged was completed or is there, and nothing that was completed is there.
async fn compare(api: &Api, queue: &str, partitions: i64, told: &Told) {
    let mut there = BTreeSet::new();
    for partition in 0..partitions {
        for text in texts(&api.items(queue, partition).await) {
            assert!(there.insert(text.clone()), "'{text}' is there twice");
        }
    }
    let again: Vec<_> = told.completed.intersection(&there).collect();
    assert!(again.is_empty(), "completed, and still there: {again:?}");
    let known = |text: &&String| told.completed.contains(*text) || told.unsure.contains(*text) || there.contains(*text);
    let lost: Vec<_> = told.produced.iter().filter(|text| !known(text)).collect();
    assert!(lost.is_empty(), "{} of {} were lost: {lost:?}", lost.len(), told.produced.len());
}

pub(crate) async fn a_stop_under_load_says_so_and_loses_nothing(backend: Backend) {
    let place = Place::new(backend);
    let mut server = place.start(&[]);
    let api = server.api();
    let (busy, idle) = (api.queue(&json!({ "requested_partitions": 2 })).await, api.plain_queue().await);
    let log = Log::default();
    let mut clients = JoinSet::new();
    for name in 0..6 {
        clients.spawn(produce_on(server.api(), busy.clone(), name, log.clone()));
        clients.spawn(consume_on(server.api(), busy.clone(), name, log.clone()));
    }
    eventually("there is some load", async || (log.lock().unwrap().completed.len() > 200).then_some(())).await;
    let parked = api.lease_later(&idle, "parked", 1);
    api.waiting(&idle, 1).await;
    // A request that has begun before the stop and gets to its end after it.
    let mut halved = Connection::open(server.address).await.unwrap();
    let body = json!({ "queue_name": busy, "request_timeout": "10s", "items": [{ "utf8": "late" }] }).to_string();
    let bytes = request("POST", "/v1/queue.produce", &[JSON], body.as_bytes());
    let (begin, end) = bytes.split_at(bytes.len() - 10);
    halved.send(begin).await.unwrap();
    // Whoever connects later is answered: by then the beginning has been read.
    for _ in 0..3 {
        server.api().info(&busy).await;
    }
    server.terminate();
    assert_eq!(parked.await.unwrap(), (453, refusal(453, "queue is shutting down")));
    halved.send(end).await.unwrap();
    let response = halved.receive().await.unwrap();
    assert_eq!((response.status, response.json()), (453, refusal(453, "service is shutting down")));
    assert!(server.ended().await.success());
    clients.join_all().await;

    let told = Arc::into_inner(log).unwrap().into_inner().unwrap();
    for message in &told.refusals {
        assert!(["service is shutting down", "queue is shutting down"].contains(&message.as_str()), "{message}");
    }
    let server = place.start(&[]);
    compare(&server.api(), &busy, 2, &told).await;
    assert!(!texts(&server.api().items(&busy, 0).await).contains(&"late".to_owned()), "what was refused is not stored");
}

pub(crate) async fn a_kill_under_load_loses_nothing(backend: Backend) {
    let place = Place::new(backend);
    let mut server = place.start(&[]);
    let queue = server.api().queue(&json!({ "requested_partitions": 3 })).await;
    let log = Log::default();
    let mut clients = JoinSet::new();
    for name in 0..6 {
        clients.spawn(produce_on(server.api(), queue.clone(), name, log.clone()));
        clients.spawn(consume_on(server.api(), queue.clone(), name, log.clone()));
    }
    eventually("there is some load", async || (log.lock().unwrap().completed.len() > 200).then_some(())).await;
    server.kill();
    clients.join_all().await;
    let told = Arc::into_inner(log).unwrap().into_inner().unwrap();
    assert!(told.refusals.is_empty(), "{:?}", told.refusals);
    let server = place.start(&[]);
    compare(&server.api(), &queue, 3, &told).await;
}

/// Only on PostgreSQL, as everything below: a second process on the same data.
pub(crate) async fn two_processes_share_their_queues(backend: Backend) {
    let place = Place::new(backend);
    let servers = [place.start(&[]), place.start(&[])];
    let [here, there] = servers.each_ref().map(Server::api);
    let queue = here.queue(&json!({ "requested_partitions": 2 })).await;
    // Known at once, and what is produced here wakes who waits there.
    for round in ["one", "two", "three"] {
        let waiting = there.lease_later(&queue, "patient", 1);
        there.waiting(&queue, 1).await;
        here.produce(&queue, &[round]).await;
        let (status, answer) = waiting.await.unwrap();
        let lease = Lease::of(&answer);
        assert_eq!((status, lease.texts()), (200, vec![round.to_owned()]), "{answer}");
        here.complete(&queue, lease.partition, &lease.ids()).await;
    }
    here.done("queues.update", &json!({ "queue_name": queue, "max_attempts": 7 })).await;
    assert_eq!(there.info(&queue).await["max_attempts"], 7);
    // Deleted and made anew: nobody works on what is gone.
    here.done("queues.delete", &json!({ "queue_name": queue })).await;
    let message = format!("queue does not exist; no such queue named '{queue}'");
    eventually("the deletion is seen", async || {
        let (status, answer) = there.call("queue.stats", &json!({ "queue_name": queue })).await;
        (status != 200).then(|| assert_eq!(answer, refusal(400, &message)))
    })
    .await;
    here.done("queues.create", &settings(&queue, &json!({}))).await;
    there.produce(&queue, &["fresh"]).await;
    assert_eq!(here.lease(&queue, 5).await.texts(), ["fresh"]);
}

/// What consumers got, each in its order: partition, id, attempts and text of every item.
type Deliveries = Vec<Vec<(i64, String, i64, String)>>;

/// Leases until so many items have been delivered to all together.
async fn drain(apis: &[Api], queue: &str, count: usize) -> Deliveries {
    let delivered = watch::Sender::new(0);
    let mut consumers = JoinSet::new();
    for (n, api) in apis.iter().enumerate() {
        let (api, queue, delivered) = (api.clone(), queue.to_owned(), delivered.clone());
        consumers.spawn(async move {
            let mut mine = Vec::new();
            let mut all = delivered.subscribe();
            loop {
                let mut request = lease_request(&queue, &format!("consumer-{n}"), 7);
                // Long enough that none ends with items on their way, which would then come out of order.
                request["request_timeout"] = "30s".into();
                let (status, answer) = tokio::select! {
                    answer = api.call("queue.lease", &request) => answer,
                    _ = all.wait_for(|delivered| *delivered >= count) => break,
                };
                if status == 454 {
                    continue;
                }
                assert_eq!(status, 200, "{answer}");
                let lease = Lease::of(&answer);
                delivered.send_modify(|delivered| *delivered += lease.items.len());
                for item in &lease.items {
                    mine.push((lease.partition, text(item, "id"), number(item, "attempts"), payload(item)));
                }
                api.complete(&queue, lease.partition, &lease.ids()).await;
            }
            mine
        });
    }
    consumers.join_all().await
}

fn assert_each_once(deliveries: &Deliveries, expected: usize) {
    let all: Vec<_> = deliveries.iter().flatten().collect();
    assert!(all.iter().all(|(_, _, attempts, _)| *attempts == 1), "an item was leased twice");
    assert_eq!(all.iter().map(|(_, id, _, _)| id).collect::<BTreeSet<_>>().len(), all.len(), "handed out twice");
    assert_eq!(all.iter().map(|(_, _, _, text)| text).collect::<BTreeSet<_>>().len(), expected, "something is lost");
    assert_eq!(all.len(), expected);
}

/// Produces so many items of its own, in requests of ten.
async fn produce_all(api: Api, queue: String, name: usize, count: usize) {
    let texts: Vec<String> = (0..count).map(|n| format!("{name}-{n}")).collect();
    for texts in texts.chunks(10) {
        api.produce(&queue, &texts.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
}

pub(crate) async fn two_processes_hand_out_everything_once(backend: Backend) {
    const EACH: usize = 250;
    let place = Place::new(backend);
    let servers = [place.start(&[]), place.start(&[])];
    let queue = servers[0].api().queue(&json!({ "requested_partitions": 4 })).await;
    let mut producers = JoinSet::new();
    for name in 0..8 {
        producers.spawn(produce_all(servers[name % 2].api(), queue.clone(), name, EACH));
    }
    let consumers: Vec<Api> = (0..8).map(|n| servers[n % 2].api()).collect();
    let deliveries = drain(&consumers, &queue, 8 * EACH).await;
    producers.join_all().await;
    assert_each_once(&deliveries, 8 * EACH);
    assert_eq!(servers[1].api().totals(&queue).await, [(0, 0); 4]);
}

pub(crate) async fn two_processes_keep_the_order_of_every_partition(backend: Backend) {
    const EACH: usize = 100;
    let place = Place::new(backend);
    let servers = [place.start(&[]), place.start(&[])];
    let queue = servers[0].api().queue(&json!({ "requested_partitions": 4 })).await;
    let mut producers = JoinSet::new();
    for name in 0..16 {
        producers.spawn(produce_all(servers[name % 2].api(), queue.clone(), name, EACH));
    }
    producers.join_all().await;
    // Everything is stored before the first lease: from here on order means something.
    let consumers: Vec<Api> = (0..16).map(|n| servers[n % 2].api()).collect();
    let deliveries = drain(&consumers, &queue, 16 * EACH).await;
    assert_each_once(&deliveries, 16 * EACH);
    for mine in &deliveries {
        let mut last: BTreeMap<i64, &str> = BTreeMap::new();
        for (partition, id, _, text) in mine {
            let before = last.insert(*partition, id);
            assert!(
                before.is_none_or(|before| before < id.as_str()),
                "'{text}' of partition {partition} came too late"
            );
        }
    }
    // Of one producer, items of a partition lie in the order in which they were produced.
    let mut all: Vec<_> = deliveries.iter().flatten().collect();
    all.sort();
    let mut seen: BTreeMap<(i64, &str), usize> = BTreeMap::new();
    for (partition, _, _, text) in all {
        let (name, n) = text.split_once('-').unwrap();
        let n: usize = n.parse().unwrap();
        assert!(seen.insert((*partition, name), n).is_none_or(|before| before < n), "{text} is out of order");
    }
}

pub(crate) async fn calls_are_answered_in_time_while_another_process_holds_the_write_lock(backend: Backend) {
    let place = Place::new(backend);
    let server = place.start(&[]);
    let api = server.api();
    let queue = api.queue(&json!({ "lease_timeout": "1h" })).await;
    api.produce(&queue, &["leased", "retried"]).await;
    let ids = api.lease(&queue, 2).await.ids();
    let other = rusqlite::Connection::open(place.file("tenure.db")).unwrap();
    other.execute_batch("begin immediate").unwrap();
    let mut calls = JoinSet::new();
    let mut call = |rpc: &'static str, mut body: Value| {
        let api = api.clone();
        // A retry has none on the wire, and a limit of the server's.
        if rpc != "queue.retry" {
            body["request_timeout"] = json!("2s");
        }
        calls.spawn(async move {
            let started = Instant::now();
            let (code, reply) = api.call(rpc, &body).await;
            (rpc, code, reply, started.elapsed())
        });
    };
    for _ in 0..10 {
        call("queue.produce", json!({ "queue_name": queue, "items": [{ "utf8": "refused" }] }));
    }
    call("queue.lease", lease_request(&queue, "late", 1));
    call("queue.complete", complete_request(&queue, 0, &ids[..1]));
    call("queue.retry", json!({ "queue_name": queue, "partition": 0, "items": [{ "id": ids[1] }] }));
    while let Some(called) = calls.join_next().await {
        let (rpc, code, reply, took) = called.unwrap();
        assert_eq!(code, 454, "{rpc}: {reply}");
        let text = reply["message"].as_str().unwrap();
        let waits = ["queue.complete", "queue.retry"].contains(&rpc);
        assert!(!waits || text == "request timeout; the store did not answer in time, try again", "{rpc}: {text}");
        // Less than SQLite's own wait for the lock, and much less than the repeats of a verb that the store begins.
        assert!(took < Duration::from_secs(8), "{rpc} took {took:?}");
    }
    other.execute_batch("commit").unwrap();
    api.produce(&queue, &["stored"]).await;
    let there = texts(&api.items(&queue, 0).await);
    assert_eq!(there, ["leased", "retried", "stored"], "a produce was carried out after its caller had been answered");
}
