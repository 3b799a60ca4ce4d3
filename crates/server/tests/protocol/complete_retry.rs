//! Complete and retry: every message in the order of the checks, and what becomes of the items before and after one
//! that fails.

use serde_json::{Value, json};

use crate::support::api::{Api, Ladder};
use crate::support::queue::{Lease, complete_request, ids, texts};
use crate::support::text::{NO_TIME, SECOND, nanos, now, text, time};
use crate::support::{Backend, shared};

fn api(backend: Backend) -> Api {
    shared(backend, "complete_retry", &[])
}

const TOO_SHORT: &str = "invalid storage id; 'nonsense': Valid encoded KSUIDs are 27 characters";

/// Greater than any id can be.
fn beyond() -> String {
    "z".repeat(27)
}

fn out_of_range() -> String {
    let bounds = "000000000000000000000000000 and aWgEPTl1tmebfsQzFP4bxwgy80V";
    format!("invalid storage id; '{}': Valid encoded KSUIDs are bounded by {bounds}", beyond())
}

fn unknown(id: &str) -> String {
    format!("invalid storage id; '{id}' does not exist")
}

fn not_completed(id: &str) -> String {
    format!("item(s) cannot be completed; '{id}' is not marked as leased")
}

fn not_retried(id: &str) -> String {
    format!("item(s) cannot be retried; '{id}' is not marked as leased")
}

/// A queue with so many items leased and two ready.
async fn leased(api: &Api, more: &Value, count: usize) -> (String, Lease, Vec<String>) {
    let queue = api.queue(more).await;
    api.produce_numbers(&queue, count + 2).await;
    let lease = api.lease(&queue, count).await;
    let ready = ids(&api.items(&queue, lease.partition).await).split_off(count);
    (queue, lease, ready)
}

pub(crate) async fn complete_refuses_in_the_order_of_its_checks(backend: Backend) {
    let api = &api(backend);
    let (queue, lease, ready) = leased(api, &json!({}), 1).await;
    let mut ladder = Ladder::new(api, "queue.complete", json!({ "queue_name": queue, "request_timeout": "1x" }));
    ladder.step("partition", 1, "partition is invalid; '1' is not a valid partition").await;
    ladder.step("partition", -1, "partition is invalid; '-1' is not a valid partition").await;
    let reason = r#"time: unknown unit "x" in duration "1x""#;
    let message = format!("request timeout is invalid; {reason} - expected format: 900ms, 5m or 15m");
    ladder.step("partition", 0, &message).await;
    ladder.step("request_timeout", "", "ids is invalid; list of ids cannot be empty").await;
    let many = |count: usize| Value::from(vec!["nonsense"; count]);
    let message = "ids is invalid; max_complete_batch_size is 1000 but received 1001";
    ladder.step("ids", many(1001), message).await;
    let message = "request timeout is required; '5m' is recommended, 15m is the maximum";
    ladder.step("ids", many(1000), message).await;
    let message = "request timeout is invalid; maximum timeout is '15m' but '15m0.001s' was requested";
    ladder.step("request_timeout", "15m0.001s", message).await;
    ladder.step("request_timeout", "15m", TOO_SHORT).await;
    ladder.step("ids", vec![beyond()], &out_of_range()).await;
    ladder.step("ids", vec!["0".repeat(27)], &unknown(&"0".repeat(27))).await;
    ladder.step("ids", vec![ready[0].clone()], &not_completed(&ready[0])).await;
    assert_eq!(ladder.end("ids", lease.ids()).await, json!({ "code": 200 }));
}

pub(crate) async fn retry_refuses_in_the_order_of_its_checks(backend: Backend) {
    let api = &api(backend);
    let (queue, lease, ready) = leased(api, &json!({}), 1).await;
    let mut ladder = Ladder::new(api, "queue.retry", json!({ "queue_name": queue }));
    ladder.step("partition", 1, "partition is invalid; '1' is not a valid partition").await;
    ladder.step("partition", 0, "items is invalid; list of items cannot be empty").await;
    let many = Value::from(vec![json!({ "id": "nonsense" }); 1001]);
    let message = "items is invalid; max_complete_batch_size is 1000 but received 1001";
    ladder.step("items", many, message).await;
    let one = |id: &str| json!([{ "id": id }]);
    ladder.step("items", one("nonsense"), TOO_SHORT).await;
    ladder.step("items", one(&beyond()), &out_of_range()).await;
    ladder.step("items", one(&"0".repeat(27)), &unknown(&"0".repeat(27))).await;
    ladder.step("items", one(&ready[0]), &not_retried(&ready[0])).await;
    assert_eq!(ladder.end("items", one(&lease.id())).await, json!({ "code": 200 }));
}

pub(crate) async fn the_first_id_that_fails_decides_and_those_before_stay_completed(backend: Backend) {
    let api = &api(backend);
    for which in ["malformed", "unknown", "ready", "twice"] {
        let (queue, lease, ready) = leased(api, &json!({}), 3).await;
        let [first, second, third]: [String; 3] = lease.ids().try_into().unwrap();
        let (bad, message) = match which {
            "malformed" => ("nonsense".to_owned(), TOO_SHORT.to_owned()),
            "unknown" => ("0".repeat(27), unknown(&"0".repeat(27))),
            "ready" => (ready[0].clone(), not_completed(&ready[0])),
            _ => (first.clone(), unknown(&first)),
        };
        // A second failure after the first is not looked at.
        let request = complete_request(&queue, 0, &[first, bad, second.clone(), "worse".to_owned()]);
        api.bad("queue.complete", &request, &message).await;
        let left = api.items(&queue, 0).await;
        assert_eq!(ids(&left), [&second, &third, &ready[0], &ready[1]].map(String::clone), "{which}");
        assert_eq!(left[0]["is_leased"], true, "{which}");
        api.complete(&queue, 0, &[third, second]).await;
        assert_eq!(ids(&api.items(&queue, 0).await), ready, "{which}");
    }
}

pub(crate) async fn the_first_retry_that_fails_decides_and_those_before_stay_retried(backend: Backend) {
    let api = &api(backend);
    let (queue, lease, ready) = leased(api, &json!({}), 3).await;
    let [first, second, third]: [String; 3] = lease.ids().try_into().unwrap();
    let items = json!([{ "id": first }, { "id": ready[1] }, { "id": second }, { "id": "worse" }]);
    let request = json!({ "queue_name": queue, "items": items });
    api.bad("queue.retry", &request, &not_retried(&ready[1])).await;
    let items = api.items(&queue, 0).await;
    assert_eq!(texts(&items), ["1", "2", "3", "4", "0"], "the first has gone to the tail");
    assert_eq!(ids(&items)[..2], [second.clone(), third.clone()]);
    assert_eq!((&items[0]["is_leased"], items[4].get("is_leased")), (&json!(true), None));
    api.complete(&queue, 0, &[second, third]).await;
}

pub(crate) async fn ids_of_other_queues_and_partitions_do_not_exist(backend: Backend) {
    let api = &api(backend);
    let (_, foreign, _) = leased(api, &json!({}), 1).await;
    let (queue, lease, _) = leased(api, &json!({ "requested_partitions": 2 }), 1).await;
    let (here, there) = (lease.partition, 1 - lease.partition);
    for (partition, id) in [(here, foreign.id()), (there, lease.id())] {
        let request = complete_request(&queue, partition, std::slice::from_ref(&id));
        api.bad("queue.complete", &request, &unknown(&id)).await;
        let request = json!({ "queue_name": queue, "partition": partition, "items": [{ "id": id, "dead": true }] });
        api.bad("queue.retry", &request, &unknown(&id)).await;
    }
    api.complete(&queue, here, &lease.ids()).await;
}

pub(crate) async fn what_is_completed_or_scheduled_does_not_exist(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    let later = json!({ "utf8": "later", "enqueue_at": time(now() + 3600 * SECOND) });
    api.produce_items(&queue, &[later, json!({ "utf8": "now" })]).await;
    let scheduled = text(&api.scheduled(&queue, 0).await[0], "id");
    let lease = api.lease(&queue, 1).await;
    api.complete(&queue, 0, &lease.ids()).await;
    for id in [scheduled, lease.id()] {
        api.bad("queue.complete", &complete_request(&queue, 0, std::slice::from_ref(&id)), &unknown(&id)).await;
        let request = json!({ "queue_name": queue, "items": [{ "id": id }] });
        api.bad("queue.retry", &request, &unknown(&id)).await;
    }
    assert_eq!(texts(&api.scheduled(&queue, 0).await), ["later"]);
}

pub(crate) async fn a_thousand_ids_are_completed_at_once(backend: Backend) {
    let api = &api(backend);
    let (queue, lease, ready) = leased(api, &json!({}), 1000).await;
    api.complete(&queue, 0, &lease.ids()).await;
    assert_eq!(ids(&api.items(&queue, 0).await), ready);
}

pub(crate) async fn a_retry_goes_to_the_tail_under_a_new_id_and_keeps_its_attempts(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    let item = json!({ "utf8": "a", "kind": "k", "encoding": "e", "reference": "r" });
    api.produce_items(&queue, &[item, json!({ "utf8": "b" })]).await;
    let before = api.items(&queue, 0).await[0].clone();
    let lease = api.lease(&queue, 1).await;
    // A time in the past, or none, means now.
    api.retry(&queue, 0, &json!([{ "id": lease.id(), "retry_at": "2001-01-01T00:00:00Z" }])).await;
    let items = api.items(&queue, 0).await;
    assert_eq!(texts(&items), ["b", "a"]);
    assert!(ids(&items).is_sorted() && text(&items[1], "id") != lease.id(), "{items:?}");
    assert_eq!((&items[1]["attempts"], items[1].get("is_leased")), (&json!(1), None));
    assert_eq!(items[1]["lease_deadline"], NO_TIME);
    for field in ["expire_deadline", "kind", "encoding", "reference"] {
        assert_eq!(items[1][field], before[field], "{field}");
    }
    let again = api.lease(&queue, 2).await;
    assert_eq!(again.texts(), ["b", "a"]);
    assert_eq!((&again.items[0]["attempts"], &again.items[1]["attempts"]), (&json!(1), &json!(2)));
}

pub(crate) async fn a_retry_for_later_is_scheduled_under_its_id(backend: Backend) {
    let api = &api(backend);
    let (queue, lease, _) = leased(api, &json!({ "requested_partitions": 3 }), 1).await;
    let retry_at = time(now() + 3600 * SECOND);
    api.retry(&queue, lease.partition, &json!([{ "id": lease.id(), "retry_at": retry_at }])).await;
    let scheduled = api.scheduled(&queue, lease.partition).await;
    assert_eq!(ids(&scheduled), lease.ids());
    assert_eq!((&scheduled[0]["attempts"], scheduled[0].get("is_leased")), (&json!(1), None));
    assert_eq!(texts(&api.items(&queue, lease.partition).await), ["1", "2"]);
}

pub(crate) async fn a_dead_item_is_deleted_where_there_is_no_dead_queue(backend: Backend) {
    let api = &api(backend);
    let (queue, lease, ready) = leased(api, &json!({}), 2).await;
    let [first, second]: [String; 2] = lease.ids().try_into().unwrap();
    let retry_at = time(now() + 3600 * SECOND);
    let items = json!([{ "id": first, "dead": true }, { "id": second, "dead": true, "retry_at": retry_at }]);
    api.retry(&queue, 0, &items).await;
    assert_eq!(ids(&api.items(&queue, 0).await), ready);
    assert!(api.scheduled(&queue, 0).await.is_empty(), "dead is dead, whatever the time");
}

pub(crate) async fn a_dead_item_moves_to_the_dead_queue(backend: Backend) {
    let api = &api(backend);
    let dead = api.queue(&json!({ "requested_partitions": 3, "expire_timeout": "99h" })).await;
    let queue = api.queue(&json!({ "requested_partitions": 2, "dead_queue": dead })).await;
    let item = json!({ "utf8": "poison", "kind": "k", "encoding": "e", "reference": "r" });
    api.produce_items(&queue, &[item]).await;
    let lease = api.lease(&queue, 1).await;
    api.retry(&queue, lease.partition, &json!([{ "id": lease.id(), "dead": true }])).await;
    assert_eq!(api.totals(&queue).await, [(0, 0), (0, 0)]);
    let items = api.items(&dead, 0).await;
    assert_eq!(items.len(), 1, "{items:?}");
    let copy = &items[0];
    for (field, value) in [("source_id", lease.id().as_str()), ("kind", "k"), ("encoding", "e"), ("reference", "r")] {
        assert_eq!(copy[field], value, "{copy}");
    }
    assert_eq!((copy.get("attempts"), copy.get("is_leased")), (None, None), "{copy}");
    assert_eq!(nanos(&copy["expire_deadline"]) - nanos(&copy["created_at"]), 99 * 3600 * SECOND);
    let lease = api.lease(&dead, 1).await;
    assert_eq!((lease.partition, lease.texts(), &lease.items[0]["attempts"]), (0, vec!["poison".into()], &json!(1)));
}

pub(crate) async fn a_retry_after_the_last_permitted_attempt_is_death(backend: Backend) {
    let api = &api(backend);
    let dead = api.plain_queue().await;
    let queue = api.queue(&json!({ "max_attempts": 2, "dead_queue": dead })).await;
    api.produce(&queue, &["stubborn"]).await;
    let first = api.lease(&queue, 1).await;
    api.retry(&queue, 0, &json!([{ "id": first.id() }])).await;
    let second = api.lease(&queue, 1).await;
    assert_eq!(second.items[0]["attempts"], 2);
    api.retry(&queue, 0, &json!([{ "id": second.id() }])).await;
    assert!(api.items(&queue, 0).await.is_empty());
    let items = api.items(&dead, 0).await;
    assert_eq!((texts(&items), &items[0]["source_id"]), (vec!["stubborn".to_owned()], &json!(second.id())));
}
