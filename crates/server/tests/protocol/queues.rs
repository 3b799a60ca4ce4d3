//! Queues: created, listed, looked at, changed and deleted; every message, in the order of the checks.

use serde_json::{Value, json};

use crate::support::api::{Api, Ladder, refusal};
use crate::support::queue::{list, settings};
use crate::support::text::{SECOND, nanos};
use crate::support::text::{now, number, text};
use crate::support::{Backend, Place, shared, unique};

fn api(backend: Backend) -> Api {
    shared(backend, "queues", &[])
}

/// What needs a queue that exists.
const LOOK_UP: [&str; 12] = [
    "queue.produce",
    "queue.lease",
    "queue.complete",
    "queue.retry",
    "queue.stats",
    "queue.clear",
    "queue.reload",
    "queues.info",
    "storage/items.list",
    "storage/scheduled.list",
    "storage/items.import",
    "storage/items.delete",
];

/// Every field is wrong.
fn hopeless() -> Value {
    json!({
        "queue_name": "q".repeat(513),
        "lease_timeout": "1".repeat(16),
        "expire_timeout": "1".repeat(16),
        "namespace": "n".repeat(257),
        "dead_queue": "d".repeat(501),
        "reference": "r".repeat(2001),
        "max_attempts": 65537,
        "requested_partitions": -1,
    })
}

async fn name_steps(ladder: &mut Ladder<'_>) {
    let too_long = "queue name is invalid; cannot be greater than '512' characters";
    ladder.step("queue_name", "q".repeat(513), too_long).await;
    for blank in ["", " \t"] {
        ladder.step("queue_name", blank, "queue name is invalid; queue name cannot be empty").await;
    }
    let message = "queue name is invalid; 'a b~' cannot contain whitespace";
    ladder.step("queue_name", "a b~", message).await;
    let message = "queue name is invalid; 'a\u{2003}b' cannot contain whitespace";
    ladder.step("queue_name", "a\u{2003}b", message).await;
    let message = "queue name is invalid; 'a~b' cannot contain '~' character";
    ladder.step("queue_name", "a~b", message).await;
}

/// From a name that passes to a namespace that nearly does.
async fn timeout_and_namespace_steps(ladder: &mut Ladder<'_>, name: &str) {
    let message = "lease timeout is invalid; cannot be greater than '15' characters";
    ladder.step("queue_name", name, message).await;
    let message = "expire timeout is invalid; cannot be greater than '15' characters";
    ladder.step("lease_timeout", "5x", message).await;
    for (text, reason) in [
        ("foo", r#"time: invalid duration "foo""#),
        ("60", r#"time: missing unit in duration "60""#),
        ("1parsec", r#"time: unknown unit "parsec" in duration "1parsec""#),
    ] {
        let message = format!("expire timeout is invalid; {reason} - expected format: 60m, 2h or 24h");
        ladder.step("expire_timeout", text, &message).await;
    }
    let reason = r#"time: unknown unit "x" in duration "5x""#;
    let message = format!("lease timeout is invalid; {reason} - expected format: 8m, 15m or 1h");
    ladder.step("expire_timeout", "10m", &message).await;
    let message = "namespace name is invalid; cannot be greater than '256' characters";
    ladder.step("lease_timeout", "", message).await;
    ladder.step("namespace", " ", "namespace name is invalid; cannot be empty").await;
    ladder.step("namespace", "n s~:", "namespace name is invalid; 'n s~:' cannot contain whitespace").await;
    ladder.step("namespace", "n~:s", "namespace name is invalid; 'n~:s' cannot contain '~' character").await;
    ladder.step("namespace", "n:s", "namespace name is invalid; 'n:s' cannot contain ':' character").await;
}

/// From a dead queue with too long a name to a number of attempts that passes.
async fn dead_queue_and_attempts_steps(ladder: &mut Ladder<'_>) {
    let name = text(&ladder.request, "queue_name");
    let end = ladder.api.plain_queue().await;
    let chained = ladder.api.queue(&json!({ "dead_queue": end })).await;
    let missing = unique("missing");
    ladder.step("dead_queue", "d q~", "dead queue is invalid; 'd q~' cannot contain whitespace").await;
    ladder.step("dead_queue", "d~q", "dead queue is invalid; 'd~q' cannot contain '~' character").await;
    ladder.step("dead_queue", name, "dead_queue cannot reference itself").await;
    let message = format!("dead_queue does not exist; '{missing}' was not found, create it first");
    ladder.step("dead_queue", missing, &message).await;
    let message = format!("dead_queue is invalid; '{chained}' already has its own dead_queue configured");
    ladder.step("dead_queue", chained, &message).await;
    let message = "reference field is invalid; cannot be greater than '2000' characters";
    ladder.step("dead_queue", end, message).await;
    ladder.step("reference", "", "max attempts is invalid; cannot be greater than 65536").await;
    ladder.step("max_attempts", -1, "max attempts is invalid; cannot be negative number").await;
    ladder.step("max_attempts", 3, "partitions is invalid; cannot be less than 1").await;
}

pub(crate) async fn create_refuses_in_the_order_of_its_checks(backend: Backend) {
    let api = &api(backend);
    let (taken, name, namespace) = (api.plain_queue().await, unique("queue"), unique("missing"));
    let mut ladder = Ladder::new(api, "queues.create", hopeless());
    name_steps(&mut ladder).await;
    timeout_and_namespace_steps(&mut ladder, &taken).await;
    let message = format!("namespace does not exist; '{namespace}' was not found");
    ladder.step_with("namespace", namespace, 453, &message).await;
    ladder.step("namespace", "", &format!("invalid queue; '{taken}' already exists")).await;
    ladder.step("queue_name", name.as_str(), "dead queue is invalid; cannot be greater than '500' characters").await;
    dead_queue_and_attempts_steps(&mut ladder).await;
    ladder.step("requested_partitions", 0, "partitions is invalid; cannot be less than 1").await;
    ladder.step("requested_partitions", 1, "lease timeout is invalid; cannot be empty").await;
    ladder.step("lease_timeout", "999ns", "lease timeout is invalid; cannot be empty").await;
    let message = "lease timeout is too long; 20m0s cannot be greater than the expire timeout 10m0s";
    ladder.step("lease_timeout", "20m", message).await;
    ladder.step("expire_timeout", "", "expire timeout is invalid; cannot be empty").await;
    assert_eq!(ladder.end("expire_timeout", "20m").await, json!({ "code": 200 }));
    assert_eq!(number(&api.info(&name).await, "max_attempts"), 3);
}

pub(crate) async fn update_refuses_in_the_order_of_its_checks(backend: Backend) {
    let api = &api(backend);
    let (queue, missing) = (api.plain_queue().await, unique("missing"));
    let mut ladder = Ladder::new(api, "queues.update", hopeless());
    name_steps(&mut ladder).await;
    timeout_and_namespace_steps(&mut ladder, &missing).await;
    ladder.step("namespace", "", &format!("queue does not exist; no such queue named '{missing}'")).await;
    ladder.step("queue_name", queue.as_str(), "dead queue is invalid; cannot be greater than '500' characters").await;
    dead_queue_and_attempts_steps(&mut ladder).await;
    ladder.step("lease_timeout", "20m", "partitions is invalid; cannot be less than 1").await;
    let message = "lease timeout is too long; 20m0s cannot be greater than the expire timeout 10m0s";
    ladder.step("requested_partitions", 0, message).await;
    // Merged first: the queue's own lease timeout is one minute.
    let request = json!({ "queue_name": queue, "expire_timeout": "30s" });
    let message = "lease timeout is too long; 1m0s cannot be greater than the expire timeout 30s";
    api.bad("queues.update", &request, message).await;
    assert_eq!(ladder.end("expire_timeout", "20m").await, json!({ "code": 200 }));
}

pub(crate) async fn delete_refuses_in_the_order_of_its_checks(backend: Backend) {
    let api = &api(backend);
    let (queue, missing) = (api.plain_queue().await, unique("missing"));
    let mut ladder = Ladder::new(api, "queues.delete", json!({}));
    name_steps(&mut ladder).await;
    let message = format!("queue does not exist; no such queue named '{missing}'");
    ladder.step("queue_name", missing, &message).await;
    assert_eq!(ladder.end("queue_name", queue.as_str()).await, json!({ "code": 200 }));
    let message = format!("queue does not exist; no such queue named '{queue}'");
    api.bad("queues.delete", &json!({ "queue_name": queue }), &message).await;
}

pub(crate) async fn every_call_to_a_queue_looks_it_up_first(backend: Backend) {
    let api = &api(backend);
    let missing = unique("missing");
    for rpc in LOOK_UP {
        for blank in ["", "  "] {
            let message = "queue name is invalid; queue name cannot be empty";
            api.bad(rpc, &json!({ "queue_name": blank }), message).await;
        }
        let message = "queue name is invalid; 'a~b' cannot contain '~' character";
        api.bad(rpc, &json!({ "queue_name": "a~b" }), message).await;
        let message = format!("queue does not exist; no such queue named '{missing}'");
        api.bad(rpc, &json!({ "queue_name": missing }), &message).await;
    }
}

pub(crate) async fn the_limits_are_inclusive(backend: Backend) {
    let api = &api(backend);
    let fill = |length: usize| {
        let name = unique("long");
        name.clone() + &"x".repeat(length - name.len())
    };
    let (name, dead, namespace) = (fill(512), fill(500), fill(256));
    api.done("namespaces.create", &json!({ "name": namespace })).await;
    api.done("queues.create", &settings(&dead, &json!({}))).await;
    let more = json!({
        "namespace": namespace, "dead_queue": dead, "reference": "r".repeat(2000), "max_attempts": 65536,
        "lease_timeout": "24h", "expire_timeout": format!("{:0>15}", "24h"),
    });
    api.done("queues.create", &settings(&name, &more)).await;
    let info = api.info(&name).await;
    assert_eq!((number(&info, "max_attempts"), text(&info, "reference").len()), (65536, 2000));
    assert_eq!((text(&info, "expire_timeout"), text(&info, "namespace")), ("24h0m0s".to_owned(), namespace));
    // Two bytes each: lengths are bytes, not characters.
    let umlauts = json!({ "queue_name": "ü".repeat(257) });
    api.bad("queues.create", &umlauts, "queue name is invalid; cannot be greater than '512' characters").await;
}

pub(crate) async fn a_queue_comes_back_as_it_was_created(backend: Backend) {
    let api = &api(backend);
    let (name, namespace, dead) = (unique("Schlange-蛇-🐍"), unique("space"), api.plain_queue().await);
    api.done("namespaces.create", &json!({ "name": namespace })).await;
    let request = json!({
        "queue_name": name, "namespace": namespace, "dead_queue": dead, "reference": "re: ü'\"\n",
        "lease_timeout": "90s", "expire_timeout": "24h", "max_attempts": 7, "requested_partitions": 3,
        // Ignored.
        "created_at": "2001-01-01T00:00:00Z", "partitions": [{ "partition": 99 }],
    });
    api.done("queues.create", &request).await;
    let mut info = api.info(&name).await;
    let (created, updated) = (info["created_at"].take(), info["updated_at"].take());
    assert_eq!(created, updated);
    assert!((nanos(&created) - now()).abs() < 600 * SECOND, "{created}");
    let expected = json!({
        "queue_name": name, "namespace": namespace, "dead_queue": dead, "reference": "re: ü'\"\n",
        "lease_timeout": "1m30s", "expire_timeout": "24h0m0s", "max_attempts": 7, "requested_partitions": 3,
        "created_at": null, "updated_at": null,
    });
    assert_eq!(info, expected);
    let listed = list(&api.ok("queues.list", &json!({ "namespace": namespace })).await);
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0]["queue_name"].as_str(), &listed[0]["created_at"]), (Some(name.as_str()), &created));
}

pub(crate) async fn lists_are_sorted_by_name_and_start_at_the_pivot(backend: Backend) {
    let api = &api(backend);
    let (ours, theirs, prefix) = (unique("space"), unique("space"), unique("list"));
    for name in [&ours, &theirs] {
        api.done("namespaces.create", &json!({ "name": name })).await;
    }
    for letter in ["b", "a", "Z", "d", "c"] {
        // Of the other namespace, and in between: the limit must not count them.
        for (namespace, suffix) in [(&theirs, "-other"), (&ours, "")] {
            let request = settings(&format!("{prefix}-{letter}{suffix}"), &json!({ "namespace": namespace }));
            api.done("queues.create", &request).await;
        }
    }
    let listed = async |pivot: &str, limit: i64| {
        let pivot = if pivot.is_empty() { String::new() } else { format!("{prefix}-{pivot}") };
        let request = json!({ "namespace": ours, "pivot": pivot, "limit": limit });
        let names = list(&api.ok("queues.list", &request).await);
        names.iter().map(|queue| text(queue, "queue_name").replace(&format!("{prefix}-"), "")).collect::<String>()
    };
    assert_eq!(listed("", 0).await, "Zabcd");
    assert_eq!(listed("", 3).await, "Zab");
    assert_eq!(listed("b", 0).await, "bcd", "a pivot is part of its list");
    assert_eq!(listed("b", 2).await, "bc");
    assert_eq!(listed("bb", 0).await, "cd", "a pivot need not exist");
    assert_eq!(listed("dd", 65536).await, "");
    let past_the_end = json!({ "namespace": ours, "pivot": "\u{10FFFF}" });
    assert_eq!(api.ok("queues.list", &past_the_end).await, json!({}));
    for (request, message) in [
        (json!({ "limit": -1 }), "limit is invalid; limit cannot be negative"),
        (json!({ "limit": 65537 }), "limit is invalid; cannot be greater than 65536"),
        (json!({ "pivot": "a~b" }), "pivot is invalid; 'a~b' cannot contain '~' character"),
    ] {
        api.bad("queues.list", &request, message).await;
    }
}

pub(crate) async fn durations_come_back_as_go_prints_them(backend: Backend) {
    let api = &api(backend);
    for (lease, printed) in [
        ("1m", "1m0s"),
        ("1500ms", "1.5s"),
        ("1.5h", "1h30m0s"),
        ("1000us", "1ms"),
        ("2µs", "2µs"),
        ("1h0m0.5s", "1h0m0.5s"),
        ("+24h", "24h0m0s"),
    ] {
        let queue = api.queue(&json!({ "lease_timeout": lease, "expire_timeout": "1000h" })).await;
        assert_eq!(api.info(&queue).await["lease_timeout"], printed, "{lease}");
    }
}

pub(crate) async fn an_update_keeps_the_timeouts_and_replaces_the_rest(backend: Backend) {
    let place = Place::new(backend);
    let server = place.start(&[]);
    let api = &server.api();
    let dead = api.plain_queue().await;
    let more = json!({ "dead_queue": dead, "reference": "old", "max_attempts": 5, "requested_partitions": 2 });
    let queue = api.queue(&more).await;
    let before = api.info(&queue).await;
    api.done("queues.update", &json!({ "queue_name": queue, "lease_timeout": "2m", "reference": "new" })).await;
    let after = api.info(&queue).await;
    for (field, value) in [("lease_timeout", "2m0s"), ("expire_timeout", "24h0m0s"), ("reference", "new")] {
        assert_eq!(after[field], value, "{after}");
    }
    assert_eq!((text(&after, "dead_queue"), number(&after, "max_attempts")), (String::new(), 0), "{after}");
    assert_eq!(after["created_at"], before["created_at"]);
    assert!(nanos(&after["updated_at"]) > nanos(&before["updated_at"]));
    // The namespace is not changed, and no partition comes or goes.
    let space = unique("space");
    api.done("namespaces.create", &json!({ "name": space })).await;
    let request = json!({ "queue_name": queue, "namespace": space, "requested_partitions": 9 });
    api.done("queues.update", &request).await;
    let info = api.info(&queue).await;
    assert_eq!((&info["namespace"], &info["requested_partitions"]), (&before["namespace"], &json!(9)));
    assert_eq!(api.totals(&queue).await.len(), 2);
    tenure_store::Store::connect(&place.dsn).await.unwrap().verify().await.unwrap();
}

pub(crate) async fn an_update_holds_for_what_comes_after_it(backend: Backend) {
    let api = &api(backend);
    let queue = api.queue(&json!({ "lease_timeout": "1m", "expire_timeout": "2h" })).await;
    api.produce(&queue, &["old"]).await;
    let old = api.items(&queue, 0).await[0].clone();
    let request = json!({ "queue_name": queue, "lease_timeout": "3h", "expire_timeout": "5h" });
    api.done("queues.update", &request).await;
    api.produce(&queue, &["new"]).await;
    let items = api.items(&queue, 0).await;
    let lives = |item: &Value| nanos(&item["expire_deadline"]) - nanos(&item["created_at"]);
    assert_eq!(items[0], old, "a deadline that was set stays");
    assert_eq!((lives(&items[0]), lives(&items[1])), (2 * 3600 * SECOND, 5 * 3600 * SECOND));
    let lease = api.lease(&queue, 2).await;
    assert!(nanos(&lease.items[0]["lease_deadline"]) > nanos(&old["created_at"]) + 2 * 3600 * SECOND);
    // Only one setting is changed: the timeouts still hold.
    api.done("queues.update", &json!({ "queue_name": queue, "max_attempts": 3 })).await;
    api.produce(&queue, &["newer"]).await;
    let lease = api.lease(&queue, 1).await;
    assert!(nanos(&lease.items[0]["lease_deadline"]) > nanos(&old["created_at"]) + 2 * 3600 * SECOND);
}

pub(crate) async fn a_deleted_queue_takes_its_items_along_and_answers_who_waits(backend: Backend) {
    let api = &api(backend);
    let (full, empty) = (api.plain_queue().await, api.plain_queue().await);
    api.produce(&full, &["ready", "leased"]).await;
    api.lease(&full, 1).await;
    let later = json!({ "utf8": "later", "enqueue_at": "2100-01-01T00:00:00Z" });
    api.produce_items(&full, &[later]).await;
    let waiting = api.lease_later(&empty, "patient", 1);
    api.waiting(&empty, 1).await;
    for queue in [&full, &empty] {
        api.done("queues.delete", &json!({ "queue_name": queue })).await;
    }
    assert_eq!(waiting.await.unwrap(), (453, refusal(453, "queue is shutting down")));
    api.done("queues.create", &settings(&full, &json!({}))).await;
    assert_eq!(api.items(&full, 0).await, Vec::<Value>::new());
    assert_eq!(api.scheduled(&full, 0).await, Vec::<Value>::new());
    api.produce(&full, &["fresh"]).await;
    assert_eq!(api.lease(&full, 9).await.texts(), ["fresh"]);
}
