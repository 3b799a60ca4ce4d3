//! Requests that are well-formed and did harm, or would have: found by reading and by noise, kept so that they stay
//! harmless.

use std::time::Duration;

use chrono::{SecondsFormat, TimeDelta, Utc};
use serde_json::{Value as Json, json};
use tokio::time::timeout;

use crate::body::{Field, Value, field, json as as_json, messages, protobuf, text, texts};
use crate::caller::{Caller, JSON, PROTOBUF};
use crate::noise::Noise;
use crate::{PATIENCE, SQLITE, seed, stores};

/// So many milliseconds from now, as JSON has it.
fn in_millis(millis: i64) -> String {
    (Utc::now() + TimeDelta::milliseconds(millis)).to_rfc3339_opts(SecondsFormat::Micros, true)
}

async fn started(dsn: &str) -> Caller {
    let caller = Caller::start(dsn, false).await;
    caller.create_queue("q").await;
    caller
}

async fn import(caller: &Caller, item: &Json) -> Json {
    caller.done("storage/items.import", &json!({ "queue_name": "q", "items": [item] })).await["items"][0].clone()
}

/// What a lease gets that must get something.
async fn lease(caller: &Caller) -> Json {
    let request = json!({ "queue_name": "q", "batch_size": 10, "client_id": "c", "request_timeout": "3s" });
    caller.done("queue.lease", &request).await["items"].clone()
}

/// Promotion puts the first item back among the others, where no two may have the same source.
#[tokio::test]
async fn an_item_that_waits_for_its_retry_comes_back_though_its_source_was_imported_again() {
    for dsn in stores() {
        let caller = started(&dsn).await;
        let mut item = json!({
            "source_id": "s", "payload": "Zmlyc3Q=", "is_leased": true,
            "lease_deadline": in_millis(60_000), "expire_deadline": in_millis(60_000),
        });
        let first = import(&caller, &item).await;
        let retry = json!({ "queue_name": "q", "items": [{ "id": first["id"], "retry_at": in_millis(300) }] });
        caller.done("queue.retry", &retry).await;
        item["payload"] = "c2Vjb25k".into();
        import(&caller, &item).await;
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(lease(&caller).await[0]["bytes"], "Zmlyc3Q=");
        caller.stop().await;
    }
}

/// An attempt more than 32 bits can count would stop every lease of the partition.
#[tokio::test]
async fn an_item_that_was_tried_as_often_as_can_be_said_is_leased_again_and_again() {
    for dsn in stores() {
        let caller = started(&dsn).await;
        import(&caller, &json!({ "attempts": i32::MAX, "expire_deadline": in_millis(60_000) })).await;
        for _ in 0..3 {
            let items = lease(&caller).await;
            assert_eq!(items.as_array().map(Vec::len), Some(1), "{items}");
            let retry = json!({ "queue_name": "q", "items": [{ "id": items[0]["id"] }] });
            caller.done("queue.retry", &retry).await;
        }
        caller.stop().await;
    }
}

#[tokio::test]
async fn a_lease_that_lasts_for_millennia_does_not_wrap_around_in_the_stats() {
    let caller = started(SQLITE).await;
    let far = "9999-12-31T23:59:59Z";
    import(&caller, &json!({ "is_leased": true, "lease_deadline": far, "expire_deadline": far })).await;
    let stats = caller.done("queue.stats", &json!({ "queue_name": "q" })).await;
    let partition = &stats["logicalQueues"][0]["partitions"][0];
    assert_eq!(partition["average_leased_age"], "2562047h47m16.854775807s", "{stats}");
    caller.stop().await;
}

#[tokio::test]
async fn a_nul_in_a_name_is_refused_without_a_word_of_the_database() {
    for dsn in stores() {
        let caller = started(&dsn).await;
        let (queue, pivot) = (json!({ "queue_name": "a\0b" }), json!({ "pivot": "a\0b" }));
        let calls = ["queue.stats", "queue.reload", "queues.info", "queues.delete"].map(|path| (path, &queue));
        for (path, body) in calls.into_iter().chain([("queues.list", &pivot)]) {
            let answer = caller.call(path, body).await;
            let message = answer.json().unwrap().to_string();
            assert!(answer.status == 400 || path == "queues.list", "{path}: {answer:?}");
            assert!(!message.contains("SQL"), "{path}: {message}");
        }
        caller.stop().await;
    }
}

/// It is no name, whoever asks: nobody has failed to look anything up.
#[tokio::test]
async fn a_nul_in_a_namespace_is_a_bad_request_also_when_callers_need_rights() {
    for dsn in stores() {
        let caller = Caller::start(&dsn, true).await;
        for path in ["roles.list", "rolebindings.list", "queues.list"] {
            let answer = caller.call(path, &json!({ "namespace": "a\0b" })).await;
            assert_eq!(answer.status, 400, "{path}: {answer:?}");
        }
        caller.stop().await;
    }
}

const MANY: usize = 100_000;

fn many(of: &Value) -> Value {
    Value::List(vec![of.clone(); MANY])
}

#[tokio::test]
async fn lists_of_a_hundred_thousand_are_carried_out_or_refused() {
    let caller = started(SQLITE).await;
    let (queue, wait) = (text(1, "queue_name", "q"), text(2, "request_timeout", "1s"));
    let (nothing, blank) = (Value::Message(Vec::new()), Value::Text(String::new()));
    // All but the first of them are there already.
    let same = Value::Message(vec![text(2, "source_id", "s")]);
    let role = [text(1, "namespace", "_system"), text(2, "name", "r")];
    let calls: Vec<(&str, Vec<Field>)> = vec![
        ("queue.produce", vec![queue.clone(), wait, field(3, "items", many(&nothing))]),
        ("queue.complete", vec![queue.clone(), field(4, "ids", many(&blank))]),
        ("queue.retry", vec![queue.clone(), field(3, "items", many(&nothing))]),
        ("queues.update", vec![queue.clone(), field(10, "partitions", many(&nothing))]),
        ("storage/items.delete", vec![queue.clone(), field(3, "ids", many(&blank))]),
        ("storage/items.import", vec![queue, field(3, "items", many(&same))]),
        ("roles.create", role.into_iter().chain([field(3, "permissions", many(&blank))]).collect()),
    ];
    for (path, message) in &calls {
        for (mime, body) in [(JSON, as_json(message).into_bytes()), (PROTOBUF, protobuf(message))] {
            let answer = timeout(15 * PATIENCE, caller.post(path, mime, body)).await.unwrap();
            assert!([200, 400, 455].contains(&answer.status), "{path}: {}", answer.status);
        }
    }
    caller.round_trip().await;
    caller.stop().await;
}

/// What is done to a queue that others delete, create again and name as their dead queue.
const CROWDED: &[&str] = &[
    "/v1/queue.produce",
    "/v1/queue.lease",
    "/v1/queue.complete",
    "/v1/queue.retry",
    "/v1/queue.clear",
    "/v1/queue.stats",
    "/v1/queues.create",
    "/v1/queues.create",
    "/v1/queues.update",
    "/v1/queues.delete",
    "/v1/queues.delete",
    "/v1/storage/items.list",
    "/v1/storage/items.import",
    "/v1/storage/items.import",
];

async fn crowd(caller: Caller, seed: u64) {
    let mut noise = Noise::new(seed, None);
    for _ in 0..150 {
        let path = *noise.pick(CROWDED);
        let shot = noise.valid(path);
        let answer = timeout(5 * PATIENCE, caller.send(shot.request())).await;
        let answer = answer.unwrap_or_else(|_| panic!("no answer within {:?}\n{shot:?}", 5 * PATIENCE));
        assert_eq!(answer.complaint(), None, "{answer:?}\n{shot:?}");
        noise.learn(&answer);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_uses_a_queue_that_somebody_else_deletes_gets_no_internal_error() {
    for dsn in stores() {
        let caller = Caller::start(&dsn, false).await;
        let seed = seed();
        let crowds: Vec<_> = (0..8).map(|n| tokio::spawn(crowd(caller.clone(), seed.wrapping_add(n)))).collect();
        for crowd in crowds {
            crowd.await.unwrap();
        }
        caller.round_trip().await;
        caller.stop().await;
    }
}

/// Both encodings say the same, or the noise is not what it is taken for.
#[tokio::test]
async fn the_requests_of_this_test_are_understood_in_both_encodings() {
    let caller = started(SQLITE).await;
    let item = vec![text(1, "encoding", "e"), field(5, "bytes", Value::Bytes(vec![0, 255])), text(2, "kind", "k")];
    let produce =
        [text(1, "queue_name", "q"), text(2, "request_timeout", "1s"), messages(3, "items", vec![item.clone(), item])];
    for (mime, body) in [(JSON, as_json(&produce).into_bytes()), (PROTOBUF, protobuf(&produce))] {
        assert_eq!(caller.post("queue.produce", mime, body).await.status, 200, "{mime}");
    }
    let items = lease(&caller).await;
    let items = items.as_array().unwrap();
    assert_eq!(items.len(), 4);
    assert!(items.iter().all(|item| item["bytes"] == "AP8=" && item["kind"] == "k" && item["encoding"] == "e"));
    let ids = items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect();
    let complete = [text(1, "queue_name", "q"), text(3, "request_timeout", "1s"), texts(4, "ids", ids)];
    assert_eq!(caller.post("queue.complete", PROTOBUF, protobuf(&complete)).await.status, 200);
    caller.stop().await;
}
