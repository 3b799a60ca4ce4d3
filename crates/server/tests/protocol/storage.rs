//! What operators do to a queue: statistics, clearing, reloading, listing, importing and deleting items.

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::queue::{ids, list, list_request, texts};
use crate::support::text::{NO_TIME, SECOND, base64, nanos, now, number, payload, predecessor, text, time};
use crate::support::{Backend, eventually, shared};

fn api(backend: Backend) -> Api {
    shared(backend, "storage", &[])
}

const TOO_SHORT: &str = "invalid storage id; 'nonsense': Valid encoded KSUIDs are 27 characters";
const OUT_OF_RANGE: &str = "invalid storage id; 'zzzzzzzzzzzzzzzzzzzzzzzzzzz': Valid encoded KSUIDs are bounded by \
    000000000000000000000000000 and aWgEPTl1tmebfsQzFP4bxwgy80V";
/// The greatest id there can be.
const GREATEST: &str = "aWgEPTl1tmebfsQzFP4bxwgy80V";

fn in_an_hour() -> String {
    time(now() + 3600 * SECOND)
}

/// A queue with three ready items, two leased ones and one scheduled.
async fn mixed(api: &Api) -> String {
    let queue = api.plain_queue().await;
    api.produce(&queue, &["leased 1", "leased 2", "ready 1", "ready 2", "ready 3"]).await;
    api.produce_items(&queue, &[json!({ "utf8": "scheduled", "enqueue_at": in_an_hour() })]).await;
    assert_eq!(api.lease(&queue, 2).await.texts(), ["leased 1", "leased 2"]);
    queue
}

/// What is ready or leased, and what is scheduled.
async fn contents(api: &Api, queue: &str) -> (Vec<String>, Vec<String>) {
    (texts(&api.items(queue, 0).await), texts(&api.scheduled(queue, 0).await))
}

pub(crate) async fn stats_tell_the_truth(backend: Backend) {
    let api = &api(backend);
    let queue = api.queue(&json!({ "lease_timeout": "30m" })).await;
    let empty = json!({ "partitions": [{ "average_age": "0s", "average_leased_age": "0s" }] });
    let mut stats = api.stats(&queue).await;
    // The call that asks is itself in flight.
    stats.as_object_mut().unwrap().remove("in_flight");
    assert_eq!(stats, empty);
    api.produce_numbers(&queue, 500).await;
    let lease = api.lease(&queue, 15).await;
    assert_eq!(api.totals(&queue).await, [(500, 15)]);
    api.complete(&queue, 0, &lease.ids()[..5]).await;
    api.retry(&queue, 0, &json!([{ "id": lease.ids()[5] }])).await;
    let scheduled = json!({ "utf8": "later", "enqueue_at": in_an_hour() });
    api.produce_items(&queue, &[scheduled.clone(), scheduled]).await;
    let stats = api.stats(&queue).await;
    let partition = &stats["partitions"][0];
    assert_eq!((number(partition, "total"), number(partition, "total_leased")), (495, 9), "{stats}");
    assert_eq!((number(partition, "scheduled"), number(partition, "failures")), (2, 0), "{stats}");
    // Leases last thirty minutes, and hardly any time has passed.
    let left = text(partition, "average_leased_age");
    assert!(left.starts_with("29m") || left == "30m0s" || left.starts_with("28m"), "{left}");
    assert!(!text(partition, "average_age").is_empty(), "{stats}");
}

pub(crate) async fn stats_count_who_waits(backend: Backend) {
    let api = &api(backend);
    let queue = api.queue(&json!({ "requested_partitions": 2 })).await;
    let waiting = [api.lease_later(&queue, "a", 1), api.lease_later(&queue, "b", 1)];
    api.waiting(&queue, 2).await;
    let stats = api.stats(&queue).await;
    assert!(number(&stats, "in_flight") >= 2, "{stats}");
    assert_eq!((number(&stats, "produce_waiting"), number(&stats, "complete_waiting")), (0, 0), "{stats}");
    // Every partition has its number; that of the first is zero, and left out.
    let numbers: Vec<i64> =
        stats["partitions"].as_array().unwrap().iter().map(|partition| number(partition, "partition")).collect();
    assert_eq!(numbers, [0, 1]);
    api.produce(&queue, &["x", "y"]).await;
    for lease in waiting {
        assert_eq!(lease.await.unwrap().0, 200);
    }
    api.waiting(&queue, 0).await;
}

pub(crate) async fn clear_takes_what_it_is_told_to(backend: Backend) {
    let api = &api(backend);
    let queue = mixed(api).await;
    for request in [json!({ "queue_name": queue }), json!({ "queue_name": queue, "destructive": true })] {
        let message = "invalid clear request; one of 'queue', 'scheduled' must be true";
        api.bad("queue.clear", &request, message).await;
    }
    let (leased, scheduled) = (vec!["leased 1".to_owned(), "leased 2".into()], vec!["scheduled".to_owned()]);
    let ready: Vec<String> = ["ready 1", "ready 2", "ready 3"].map(str::to_owned).into();

    api.done("queue.clear", &json!({ "queue_name": queue, "queue": true })).await;
    assert_eq!(contents(api, &queue).await, (leased.clone(), scheduled));
    let queue = mixed(api).await;
    api.done("queue.clear", &json!({ "queue_name": queue, "scheduled": true })).await;
    assert_eq!(contents(api, &queue).await, ([leased.clone(), ready].concat(), vec![]));
    let queue = mixed(api).await;
    api.done("queue.clear", &json!({ "queue_name": queue, "queue": true, "scheduled": true })).await;
    assert_eq!(contents(api, &queue).await, (leased, vec![]));
    let queue = mixed(api).await;
    api.done("queue.clear", &json!({ "queue_name": queue, "queue": true, "destructive": true })).await;
    assert!(api.items(&queue, 0).await.is_empty());
    let queue = mixed(api).await;
    let everything = json!({ "queue_name": queue, "queue": true, "scheduled": true, "destructive": true });
    api.done("queue.clear", &everything).await;
    assert_eq!(contents(api, &queue).await, (vec![], vec![]));
    assert_eq!(api.totals(&queue).await, [(0, 0)]);
}

pub(crate) async fn clear_takes_all_partitions(backend: Backend) {
    let api = &api(backend);
    let queue = api.queue(&json!({ "requested_partitions": 3 })).await;
    for _ in 0..3 {
        api.produce_numbers(&queue, 4).await;
    }
    api.done("queue.clear", &json!({ "queue_name": queue, "queue": true })).await;
    assert_eq!(api.totals(&queue).await, [(0, 0); 3]);
    // Counted anew: what comes now is found.
    api.produce(&queue, &["after"]).await;
    assert_eq!(api.lease(&queue, 5).await.texts(), ["after"]);
}

pub(crate) async fn reload_changes_nothing(backend: Backend) {
    let api = &api(backend);
    let (empty, queue) = (api.plain_queue().await, mixed(api).await);
    let (items, scheduled) = (api.items(&queue, 0).await, api.scheduled(&queue, 0).await);
    for queue in [&empty, &queue] {
        api.done("queue.reload", &json!({ "queue_name": queue })).await;
    }
    assert_eq!((api.items(&queue, 0).await, api.scheduled(&queue, 0).await), (items, scheduled));
    assert_eq!(api.lease(&queue, 9).await.texts(), ["ready 1", "ready 2", "ready 3"]);
}

pub(crate) async fn items_are_listed_with_all_that_is_known_about_them(backend: Backend) {
    let api = &api(backend);
    let queue = api.queue(&json!({ "lease_timeout": "2h", "expire_timeout": "3h", "max_attempts": 9 })).await;
    let item = json!({ "encoding": "e", "kind": "k", "reference": "r", "utf8": "text" });
    api.produce_items(&queue, &[item.clone(), item]).await;
    let lease = api.lease(&queue, 1).await;
    let items = api.items(&queue, 0).await;
    let created = nanos(&items[0]["created_at"]);
    assert!((created - now()).abs() < 600 * SECOND);
    for item in &items {
        for (field, value) in [("encoding", "e"), ("kind", "k"), ("reference", "r"), ("payload", "dGV4dA==")] {
            assert_eq!(item[field], value);
        }
        assert_eq!(nanos(&item["expire_deadline"]) - nanos(&item["created_at"]), 3 * 3600 * SECOND);
        for field in ["dead_deadline", "updated_at", "enqueue_at", "source_id"] {
            assert_eq!(item.get(field), None, "{item}");
        }
    }
    let leased = &items[0];
    assert_eq!((&leased["is_leased"], &leased["attempts"]), (&json!(true), &json!(1)));
    assert_eq!((text(leased, "id"), &leased["lease_deadline"]), (lease.id(), &lease.items[0]["lease_deadline"]));
    let ready = &items[1];
    assert_eq!((ready.get("is_leased"), ready.get("attempts")), (None, None));
    assert_eq!(ready["lease_deadline"], NO_TIME, "no time is not an absent time");
}

pub(crate) async fn lists_start_at_the_pivot(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    api.produce_numbers(&queue, 20).await;
    let ids = ids(&api.items(&queue, 0).await);
    let listed = async |pivot: &str, limit: i64| {
        let request = json!({ "queue_name": queue, "pivot": pivot, "limit": limit });
        texts(&list(&api.ok("storage/items.list", &request).await))
    };
    assert_eq!(listed("", 3).await, ["0", "1", "2"]);
    assert_eq!(listed("  ", 1).await, ["0"]);
    assert_eq!(listed(&ids[18], 0).await, ["18", "19"], "a pivot is part of its list");
    assert_eq!(listed(&predecessor(&ids[0]), 1).await, ["0"], "a pivot need not exist");
    assert_eq!(listed(&"0".repeat(27), 1).await, ["0"]);
    assert!(listed(GREATEST, 0).await.is_empty());
    // Page by page: the last row of a page is the first of the next.
    let (mut pivot, mut seen) = (String::new(), Vec::new());
    loop {
        let request = json!({ "queue_name": queue, "pivot": pivot, "limit": 7 });
        let page = list(&api.ok("storage/items.list", &request).await);
        let new = if pivot.is_empty() { &page[..] } else { &page[1..] };
        if new.is_empty() {
            break;
        }
        seen.extend(texts(new));
        pivot = text(&page[page.len() - 1], "id");
    }
    assert_eq!(seen, (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
    for rpc in ["storage/items.list", "storage/scheduled.list"] {
        for (pivot, message) in [("nonsense", TOO_SHORT), ("zzzzzzzzzzzzzzzzzzzzzzzzzzz", OUT_OF_RANGE)] {
            api.bad(rpc, &json!({ "queue_name": queue, "pivot": pivot }), message).await;
        }
    }
}

pub(crate) async fn scheduled_items_have_a_list_of_their_own(backend: Backend) {
    let api = &api(backend);
    let queue = mixed(api).await;
    api.produce_items(&queue, &[json!({ "utf8": "scheduled 2", "enqueue_at": in_an_hour() })]).await;
    let scheduled = api.scheduled(&queue, 0).await;
    assert_eq!(texts(&scheduled), ["scheduled", "scheduled 2"]);
    assert_eq!(scheduled[0]["lease_deadline"], NO_TIME);
    let request = json!({ "queue_name": queue, "pivot": scheduled[1]["id"], "limit": 10 });
    assert_eq!(list(&api.ok("storage/scheduled.list", &request).await), scheduled[1..]);
    let listed = texts(&api.items(&queue, 0).await);
    assert_eq!(listed, ["leased 1", "leased 2", "ready 1", "ready 2", "ready 3"]);
}

pub(crate) async fn ten_thousand_items_are_listed_at_once(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    api.produce_numbers(&queue, 10_000).await;
    let request = json!({ "queue_name": queue, "limit": 20_000 });
    let items = list(&api.ok("storage/items.list", &request).await);
    assert_eq!(items.len(), 10_000);
    assert!(items.iter().enumerate().all(|(n, item)| payload(item) == n.to_string()));
    let request = json!({ "queue_name": queue });
    let items = list(&api.ok("storage/items.list", &request).await);
    assert_eq!(items.len(), 1000, "a thousand when no limit is given");
}

pub(crate) async fn an_import_is_stored_as_it_is_and_answered_as_it_is_stored(backend: Backend) {
    let api = &api(backend);
    let queue = api.queue(&json!({ "requested_partitions": 2 })).await;
    api.bad("storage/items.import", &json!({ "queue_name": queue }), "items is invalid; cannot be empty").await;
    let old = "3AAAAAAAAAAAAAAAAAAAAAAAAAA";
    let items = json!([
        {
            "id": old, "source_id": "s-1", "is_leased": true, "lease_deadline": "2099-01-02T03:04:05.123456789Z",
            "expire_deadline": "2099-12-31T23:59:59.999999999Z", "created_at": "2001-01-01T00:00:00Z", "attempts": 3,
            "max_attempts": 7, "reference": "r", "encoding": "e", "kind": "k", "payload": base64(b"\x00\xff"),
        },
        {
            "lease_deadline": NO_TIME, "expire_deadline": "2099-01-01T02:00:00+02:00", "payload": base64(b"ready"),
            // Ignored: an import is never scheduled.
            "enqueue_at": "2099-01-01T00:00:00Z", "dead_deadline": "2099-01-01T00:00:00Z",
        },
    ]);
    let imported = api.import(&queue, 1, &items).await;
    assert_eq!(imported.len(), 2);
    assert_eq!(imported, api.items(&queue, 1).await, "what is answered is what is stored");
    assert!(api.items(&queue, 0).await.is_empty() && api.scheduled(&queue, 1).await.is_empty());
    let mut first = imported[0].clone();
    let (id, created) = (first["id"].take(), first["created_at"].take());
    assert!(id != old && id.as_str().is_some_and(|id| id.len() == 27), "{id}");
    assert!((nanos(&created) - now()).abs() < 600 * SECOND, "{created}");
    let expected = json!({
        "id": null, "source_id": "s-1", "is_leased": true, "lease_deadline": "2099-01-02T03:04:05.123456Z",
        "expire_deadline": "2099-12-31T23:59:59.999999Z", "created_at": null, "attempts": 3, "max_attempts": 7,
        "reference": "r", "encoding": "e", "kind": "k", "payload": "AP8=",
    });
    assert_eq!(first, expected, "times are cut, never rounded");
    let second = &imported[1];
    assert_eq!(
        (&second["expire_deadline"], &second["lease_deadline"]),
        (&json!("2099-01-01T00:00:00Z"), &json!(NO_TIME))
    );
    // What is leased can be completed, what is ready can be leased.
    api.complete(&queue, 1, &[text(&imported[0], "id")]).await;
    let lease = api.lease(&queue, 9).await;
    assert_eq!((lease.partition, lease.texts(), &lease.items[0]["attempts"]), (1, vec!["ready".into()], &json!(1)));
}

pub(crate) async fn an_absent_time_of_an_import_is_1970(backend: Backend) {
    let api = &api(backend);
    let dead = api.plain_queue().await;
    let queue = api.queue(&json!({ "dead_queue": dead })).await;
    let items = json!([
        { "payload": base64(b"no lease"), "expire_deadline": in_an_hour() },
        { "payload": base64(b"no expiry") },
    ]);
    let imported = api.import(&queue, 0, &items).await;
    eventually("what expired in 1970 is dead", async || {
        (texts(&api.items(&dead, 0).await) == ["no expiry"]).then_some(())
    })
    .await;
    assert_eq!(api.items(&queue, 0).await, imported[..1]);
    assert_eq!(api.lease(&queue, 9).await.texts(), ["no lease"]);
}

pub(crate) async fn an_import_keeps_its_order_and_counts_attempts_on(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    api.produce(&queue, &["before"]).await;
    let item =
        |n: i32| json!({ "payload": base64(n.to_string().as_bytes()), "expire_deadline": in_an_hour(), "attempts": n });
    let items: Vec<Value> = (0..2500).map(item).collect();
    let imported = api.import(&queue, 0, &json!(items)).await;
    assert_eq!(imported.len(), 2500);
    assert!(ids(&imported).is_sorted());
    api.produce(&queue, &["after"]).await;
    assert_eq!(api.lease(&queue, 1).await.texts(), ["before"]);
    let lease = api.lease(&queue, 3).await;
    assert_eq!(lease.texts(), ["0", "1", "2"]);
    assert_eq!(lease.items.iter().map(|item| number(item, "attempts")).collect::<Vec<_>>(), [1, 2, 3]);
}

pub(crate) async fn a_source_id_is_imported_once_until_it_is_gone(backend: Backend) {
    let api = &api(backend);
    let queue = api.queue(&json!({ "requested_partitions": 2 })).await;
    let item = |source: &str, text: &str| {
        let payload = base64(text.as_bytes());
        json!({ "source_id": source, "payload": payload, "expire_deadline": in_an_hour() })
    };
    let imported =
        api.import(&queue, 0, &json!([item("s", "first"), item("s", "twin"), item("", "a"), item("", "b")])).await;
    assert_eq!(texts(&imported), ["first", "twin", "a", "b"], "all are answered");
    assert_eq!(texts(&api.items(&queue, 0).await), ["first", "a", "b"], "only one is stored");
    // Each partition has its own.
    api.import(&queue, 1, &json!([item("s", "elsewhere")])).await;
    assert_eq!(texts(&api.items(&queue, 1).await), ["elsewhere"]);
    api.done("queue.clear", &json!({ "queue_name": queue, "queue": true })).await;
    for way in ["cleared", "completed", "dead", "deleted"] {
        api.import(&queue, 0, &json!([item("s", way)])).await;
        api.import(&queue, 0, &json!([item("s", "too early")])).await;
        let items = api.items(&queue, 0).await;
        assert_eq!(texts(&items), [way], "the source id can be used again");
        match way {
            "cleared" => api.done("queue.clear", &json!({ "queue_name": queue, "queue": true })).await,
            "completed" => {
                let lease = api.lease(&queue, 1).await;
                api.complete(&queue, 0, &lease.ids()).await;
            }
            "dead" => {
                let lease = api.lease(&queue, 1).await;
                api.retry(&queue, 0, &json!([{ "id": lease.id(), "dead": true }])).await;
            }
            _ => api.done("storage/items.delete", &json!({ "queue_name": queue, "ids": ids(&items) })).await,
        }
    }
    assert!(api.items(&queue, 0).await.is_empty());
}

pub(crate) async fn items_are_deleted_in_whatever_state(backend: Backend) {
    let api = &api(backend);
    let queue = mixed(api).await;
    let rpc = "storage/items.delete";
    api.bad(rpc, &json!({ "queue_name": queue }), "ids is invalid; cannot be empty").await;
    for (id, message) in [("nonsense", TOO_SHORT), ("zzzzzzzzzzzzzzzzzzzzzzzzzzz", OUT_OF_RANGE)] {
        api.bad(rpc, &json!({ "queue_name": queue, "ids": [id] }), message).await;
    }
    let (items, scheduled) = (api.items(&queue, 0).await, api.scheduled(&queue, 0).await);
    // Ids that nobody knows are no mistake: somebody may have been faster.
    let chosen = json!([items[0]["id"], "0".repeat(27), GREATEST, items[2]["id"], scheduled[0]["id"]]);
    for _ in 0..2 {
        api.done(rpc, &json!({ "queue_name": queue, "ids": chosen })).await;
        assert_eq!(contents(api, &queue).await.0, ["leased 2", "ready 2", "ready 3"]);
        assert!(contents(api, &queue).await.1.is_empty());
    }
    assert_eq!(api.totals(&queue).await, [(3, 1)]);
}

pub(crate) async fn lists_of_an_empty_queue_are_empty(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    for rpc in ["storage/items.list", "storage/scheduled.list"] {
        assert_eq!(api.ok(rpc, &list_request(&queue, 0)).await, json!({}));
    }
}

pub(crate) async fn ages_grow_with_time(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    api.produce(&queue, &["old"]).await;
    eventually("the item is a second old", async || {
        let age = text(&api.stats(&queue).await["partitions"][0], "average_age");
        let seconds = age.strip_suffix('s').and_then(|number| number.parse::<f64>().ok());
        (seconds? >= 1.0).then_some(())
    })
    .await;
}
