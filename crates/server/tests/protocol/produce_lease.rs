//! Produce and lease: every message in the order of the checks, long polls, and how waiting leases share.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::api::{Api, Connection, JSON, Ladder, refusal, request};
use crate::support::queue::{Lease, lease_request, texts};
use crate::support::text::{MILLISECOND, SECOND, base64, from_base64, nanos, now, number, time};
use crate::support::{Backend, eventually, shared, unique};

fn api(backend: Backend) -> Api {
    shared(backend, "produce_lease", &[])
}

/// A server whose queues can be paused.
fn pausable(backend: Backend) -> Api {
    shared(backend, "pausable", &["--test-hooks"])
}

const REQUIRED: &str = "request timeout is required; '5m' is recommended, 15m is the maximum";

fn expected_format(reason: &str) -> String {
    format!("request timeout is invalid; {reason} - expected format: 900ms, 5m or 15m")
}

fn too_long(asked: &str) -> String {
    format!("request timeout is invalid; maximum timeout is '15m' but '{asked}' was requested")
}

fn too_short(asked: &str) -> String {
    format!("request timeout is invalid; minimum timeout is '10ms' but '{asked}' was requested")
}

pub(crate) async fn produce_refuses_in_the_order_of_its_checks(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    let mut ladder = Ladder::new(api, "queue.produce", json!({ "queue_name": queue }));
    let reason = r#"time: invalid duration "soon""#;
    ladder.step("request_timeout", "soon", &expected_format(reason)).await;
    let reason = r#"time: missing unit in duration "5""#;
    ladder.step("request_timeout", "5", &expected_format(reason)).await;
    ladder.step("request_timeout", "", REQUIRED).await;
    ladder.step("request_timeout", "0s", REQUIRED).await;
    ladder.step("request_timeout", "15m", &too_long("15m0s")).await;
    ladder.step("request_timeout", "16m", &too_long("16m0s")).await;
    ladder.step("request_timeout", "10ms", &too_short("10ms")).await;
    ladder.step("request_timeout", "-1s", &too_short("-1s")).await;
    let empty = "items cannot be empty; at least one item is required";
    ladder.step("request_timeout", "14m59.999s", empty).await;
    let items = |count: usize| Value::from(vec![json!({ "utf8": "x" }); count]);
    let message = "items is invalid; max_produce_batch_size is 1000 but received 1001";
    ladder.step("items", items(1001), message).await;
    assert_eq!(ladder.end("items", items(1000)).await, json!({ "code": 200 }));
    assert_eq!(api.items(&queue, 0).await.len(), 1000, "what was refused was not stored");
}

pub(crate) async fn lease_refuses_in_the_order_of_its_checks(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    api.produce_numbers(&queue, 1001).await;
    let mut ladder = Ladder::new(api, "queue.lease", json!({ "queue_name": queue }));
    let reason = r#"time: unknown unit "x" in duration "1x""#;
    ladder.step("request_timeout", "1x", &expected_format(reason)).await;
    ladder.step("request_timeout", "", "invalid client id; cannot be empty").await;
    ladder.step("client_id", " ", "invalid client id; cannot be empty").await;
    ladder.step("client_id", "me", "invalid batch size; must be greater than zero").await;
    ladder.step("batch_size", -5, "invalid batch size; must be greater than zero").await;
    let message = "invalid batch size; max_lease_batch_size is 1000, but 1001 was requested";
    ladder.step("batch_size", 1001, message).await;
    ladder.step("batch_size", 1000, REQUIRED).await;
    ladder.step("request_timeout", "15m0.001s", &too_long("15m0.001s")).await;
    ladder.step("request_timeout", "10ms", &too_short("10ms")).await;
    ladder.step("request_timeout", "1us", &too_short("1µs")).await;
    // Fifteen minutes are allowed here, unlike when producing.
    let lease = Lease::of(&ladder.end("request_timeout", "15m").await);
    assert_eq!(lease.items.len(), 1000);
    assert_eq!(lease.items[999]["attempts"], 1);
}

pub(crate) async fn items_come_out_as_they_went_in_and_in_order(backend: Backend) {
    let api = &api(backend);
    let queue = api.queue(&json!({ "lease_timeout": "7m" })).await;
    let every_byte: Vec<u8> = (0..=255).collect();
    let items = [
        json!({ "encoding": "json", "kind": "a/ü", "reference": "r-1", "utf8": "{\"ä\": 1}" }),
        json!({ "bytes": base64(&every_byte) }),
        json!({}),
        json!({ "bytes": base64(b"wins"), "utf8": "loses" }),
        json!({ "bytes": "", "utf8": "an empty list of bytes is none" }),
    ];
    api.produce_items(&queue, &items).await;
    api.produce(&queue, &["last"]).await;
    let before = now();
    let answer = api.ok("queue.lease", &lease_request(&queue, &unique("client"), 10)).await;
    assert_eq!(answer["queue_name"], queue.as_str());
    let lease = Lease::of(&answer);
    let first = &lease.items[0];
    for (field, value) in [("encoding", "json"), ("kind", "a/ü"), ("reference", "r-1")] {
        assert_eq!(first[field], value);
    }
    let payloads: Vec<Vec<u8>> =
        lease.items.iter().map(|item| from_base64(item["bytes"].as_str().unwrap_or_default())).collect();
    let expected: [&[u8]; 6] =
        ["{\"ä\": 1}".as_bytes(), &every_byte, b"", b"wins", b"an empty list of bytes is none", b"last"];
    assert_eq!(payloads, expected);
    assert_eq!(lease.items[2].get("bytes"), None, "what is empty is left out");
    assert!(lease.ids().is_sorted() && lease.ids().iter().all(|id| id.len() == 27), "{:?}", lease.ids());
    for item in &lease.items {
        assert_eq!(item["attempts"], 1);
        let leased_for = nanos(&item["lease_deadline"]) - before;
        assert!((leased_for - 420 * SECOND).abs() < 60 * SECOND, "{item}");
    }
}

pub(crate) async fn a_lease_takes_what_is_there_without_waiting_for_more(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    api.produce_numbers(&queue, 7).await;
    assert_eq!(api.lease(&queue, 4).await.texts(), ["0", "1", "2", "3"]);
    assert_eq!(api.lease(&queue, 10).await.texts(), ["4", "5", "6"]);
    api.nothing_to_lease(&queue).await;
}

pub(crate) async fn a_large_payload_survives(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    let bytes: Vec<u8> = (0..3_500_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let text = base64(&bytes);
    api.produce_items(&queue, &[json!({ "bytes": text })]).await;
    let lease = api.lease(&queue, 1).await;
    assert!(lease.items[0]["bytes"] == text.as_str(), "the payload has changed");
}

pub(crate) async fn an_empty_long_poll_ends_with_its_timeout_and_not_before(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    let mut request = lease_request(&queue, "patient", 1);
    request["request_timeout"] = "700ms".into();
    assert!(api.finds_nothing(&request).await >= Duration::from_millis(700));
    api.waiting(&queue, 0).await;
}

pub(crate) async fn a_produce_wakes_a_waiting_lease(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    // Several times: the first wake-up must not be the only one.
    for round in ["one", "two", "three"] {
        let waiting = api.lease_later(&queue, "patient", 5);
        api.waiting(&queue, 1).await;
        api.produce(&queue, &[round]).await;
        let (status, answer) = waiting.await.unwrap();
        assert_eq!(status, 200, "{answer}");
        assert_eq!(Lease::of(&answer).texts(), [round]);
        assert_eq!(number(&api.stats(&queue).await, "lease_waiting"), 0);
    }
}

pub(crate) async fn a_client_waits_once_per_queue(backend: Backend) {
    let api = &api(backend);
    let (queue, other) = (api.plain_queue().await, api.plain_queue().await);
    let first = api.lease_later(&queue, "me", 1);
    api.waiting(&queue, 1).await;
    let message = "duplicate client id; a client cannot make multiple leased requests to the same queue";
    api.bad("queue.lease", &lease_request(&queue, "me", 1), message).await;
    // Somewhere else, and under a name that differs in case, it may.
    let elsewhere = api.lease_later(&other, "me", 1);
    let capital = api.lease_later(&queue, "Me", 1);
    api.waiting(&queue, 2).await;
    api.waiting(&other, 1).await;
    api.produce(&queue, &["a", "b"]).await;
    api.produce(&other, &["c"]).await;
    for waiting in [first, elsewhere, capital] {
        let (status, answer) = waiting.await.unwrap();
        assert_eq!((status, Lease::of(&answer).items.len()), (200, 1), "{answer}");
    }
    // One after the other, it may too.
    api.produce(&queue, &["d", "e"]).await;
    for _ in 0..2 {
        api.ok("queue.lease", &lease_request(&queue, "me", 1)).await;
    }
}

pub(crate) async fn a_hundred_and_fifty_consumers_wait_at_once_and_all_are_served(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    let waiting: Vec<_> = (0..150).map(|n| api.lease_later(&queue, &format!("client-{n}"), 1)).collect();
    api.waiting(&queue, 150).await;
    api.produce_numbers(&queue, 150).await;
    let mut seen = Vec::new();
    for lease in waiting {
        let (status, answer) = lease.await.unwrap();
        assert_eq!(status, 200, "{answer}");
        seen.extend(Lease::of(&answer).texts().into_iter().map(|text| text.parse::<usize>().unwrap()));
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..150).collect::<Vec<_>>());
}

pub(crate) async fn a_client_that_has_gone_is_never_handed_an_item(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    for round in 0..3 {
        let mut connection = Connection::open(api.address).await.unwrap();
        let body = lease_request(&queue, "gone", 1).to_string();
        connection.send(&request("POST", "/v1/queue.lease", &[JSON], body.as_bytes())).await.unwrap();
        api.waiting(&queue, 1).await;
        drop(connection);
        // Noticed without anything else happening to the queue.
        api.waiting(&queue, 0).await;
        api.produce(&queue, &[&format!("item {round}")]).await;
        let lease = api.lease(&queue, 1).await;
        assert_eq!((lease.texts()[0].clone(), &lease.items[0]["attempts"]), (format!("item {round}"), &json!(1)));
    }
}

/// How many items each of the waiting leases got, by the sizes they asked for, and how many the queue still has.
async fn split(api: &Api, queue: &str, sizes: &[usize], produced: usize, paused: bool) -> (Vec<usize>, usize) {
    if paused {
        api.produce_numbers(queue, produced).await;
        api.pause(queue, true).await;
    }
    let waiting: Vec<_> = sizes.iter().map(|size| api.lease_later(queue, &unique("client"), *size)).collect();
    api.waiting(queue, i64::try_from(sizes.len()).unwrap()).await;
    if paused {
        api.pause(queue, false).await;
    } else {
        api.produce_numbers(queue, produced).await;
    }
    let mut got = Vec::new();
    let mut ids = Vec::new();
    for lease in waiting {
        let (status, answer) = lease.await.unwrap();
        assert_eq!(status, 200, "{answer}");
        let lease = Lease::of(&answer);
        assert!(lease.ids().is_sorted(), "{lease:?}");
        got.push(lease.items.len());
        ids.extend(lease.ids());
    }
    ids.sort_unstable();
    let all = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), all, "an item was handed out twice");
    let unleased = api.items(queue, 0).await.iter().filter(|item| item.get("is_leased").is_none()).count();
    (got, unleased)
}

pub(crate) async fn plenty_fills_every_waiting_lease(backend: Backend) {
    let api = &pausable(backend);
    let queue = api.plain_queue().await;
    assert_eq!(split(api, &queue, &[5, 10, 20], 100, true).await, (vec![5, 10, 20], 65));
    let queue = api.plain_queue().await;
    assert_eq!(split(api, &queue, &[5, 10, 20], 100, false).await, (vec![5, 10, 20], 65));
}

pub(crate) async fn scarce_items_are_dealt_one_at_a_time(backend: Backend) {
    let api = &pausable(backend);
    for paused in [true, false] {
        let queue = api.plain_queue().await;
        assert_eq!(split(api, &queue, &[20, 6, 1], 23, paused).await, (vec![16, 6, 1], 0), "paused: {paused}");
        let queue = api.plain_queue().await;
        assert_eq!(split(api, &queue, &[10; 5], 10, paused).await, (vec![2; 5], 0), "paused: {paused}");
    }
}

pub(crate) async fn a_paused_queue_parks_its_calls_and_answers_them_when_it_goes_on(backend: Backend) {
    let api = &pausable(backend);
    let queue = api.plain_queue().await;
    api.produce(&queue, &["old", "older"]).await;
    let held = api.lease(&queue, 1).await;
    api.pause(&queue, true).await;
    api.pause(&queue, true).await;
    let waiting = api.lease_later(&queue, "patient", 10);
    let calls = [
        ("queue.produce", json!({ "queue_name": queue, "request_timeout": "1m", "items": [{ "utf8": "new" }] })),
        ("queue.complete", json!({ "queue_name": queue, "request_timeout": "1m", "ids": held.ids() })),
    ];
    let calls = calls.map(|(rpc, body)| {
        let api = api.clone();
        tokio::spawn(async move { api.call(rpc, &body).await })
    });
    api.waiting(&queue, 1).await;
    // What only looks is answered; nothing has changed.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(texts(&api.items(&queue, 0).await), ["old", "older"]);
    assert!(!waiting.is_finished() && calls.iter().all(|call| !call.is_finished()));
    api.pause(&queue, false).await;
    for call in calls {
        assert_eq!(call.await.unwrap(), (200, json!({ "code": 200 })));
    }
    let (status, answer) = waiting.await.unwrap();
    assert_eq!(status, 200, "{answer}");
    assert_eq!(Lease::of(&answer).texts()[0], "older");
}

pub(crate) async fn a_queue_with_too_many_calls_is_overloaded_and_loses_none(backend: Backend) {
    let flags = ["--test-hooks", "--limit-requests-per-queue", "20"];
    let api = &shared(backend, "overloaded", &flags);
    let queue = api.plain_queue().await;
    api.pause(&queue, true).await;
    let produce = |n: usize| {
        let body = json!({ "queue_name": queue, "request_timeout": "1m", "items": [{ "utf8": n.to_string() }] });
        let api = api.clone();
        tokio::spawn(async move { api.call("queue.produce", &body).await })
    };
    let calls: Vec<_> = (0..60).map(produce).collect();
    let refused = || calls.iter().any(tokio::task::JoinHandle::is_finished);
    eventually("a call is refused", async || refused().then_some(())).await;
    api.pause(&queue, false).await;
    let mut stored = 0;
    for call in calls {
        match call.await.unwrap() {
            (200, _) => stored += 1,
            refused => assert_eq!(refused, (454, refusal(454, "queue is overloaded; try again later"))),
        }
    }
    assert_eq!(api.items(&queue, 0).await.len(), stored);
    assert!(stored >= 20, "{stored} were taken");
}

pub(crate) async fn only_a_time_that_lies_ahead_delays_an_item(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    let at = |offset: i64, text: &str| json!({ "utf8": text, "enqueue_at": time(now() + offset) });
    let items = [at(-3600 * SECOND, "past"), at(20 * MILLISECOND, "nearly now"), at(3600 * SECOND, "later")];
    api.produce_items(&queue, &items).await;
    assert_eq!(texts(&api.items(&queue, 0).await), ["past", "nearly now"]);
    let scheduled = api.scheduled(&queue, 0).await;
    assert_eq!(texts(&scheduled), ["later"]);
    assert_eq!(scheduled[0].get("enqueue_at"), None, "the time of a scheduled item is not shown");
    assert_eq!(api.lease(&queue, 9).await.texts(), ["past", "nearly now"]);
    api.nothing_to_lease(&queue).await;
}
