//! Where items go when a queue has several partitions, and where leases look for them.

use std::collections::BTreeSet;

use serde_json::json;

use crate::support::api::Api;
use crate::support::queue::{Lease, list_request, texts};
use crate::support::text::{SECOND, now, time};
use crate::support::{Backend, shared, unique};

fn api(backend: Backend) -> Api {
    shared(backend, "partitions", &["--test-hooks"])
}

async fn queue(api: &Api, partitions: usize) -> String {
    api.queue(&json!({ "requested_partitions": partitions })).await
}

pub(crate) async fn a_produce_goes_whole_to_the_emptiest_partition(backend: Backend) {
    let api = &api(backend);
    let two = queue(api, 2).await;
    api.produce_numbers(&two, 10).await;
    api.produce_numbers(&two, 11).await;
    assert_eq!(api.totals(&two).await, [(10, 0), (11, 0)]);
    let expected: Vec<String> = (0..11).map(|n| n.to_string()).collect();
    assert_eq!(texts(&api.items(&two, 1).await), expected, "in the order of the request");

    let ten = queue(api, 10).await;
    for _ in 0..10 {
        api.produce_numbers(&ten, 5).await;
    }
    assert_eq!(api.totals(&ten).await, [(5, 0); 10]);
}

pub(crate) async fn a_lease_goes_to_the_fullest_partition(backend: Backend) {
    let api = &api(backend);
    let queue = queue(api, 2).await;
    for _ in 0..5 {
        api.produce_numbers(&queue, 10).await;
    }
    assert_eq!(api.totals(&queue).await, [(30, 0), (20, 0)]);
    for (batch, partition) in [(5, 0), (10, 0), (20, 1)] {
        let lease = api.lease(&queue, batch).await;
        assert_eq!((lease.items.len(), lease.partition), (batch, partition));
    }
    assert_eq!(api.totals(&queue).await, [(30, 15), (20, 20)]);
}

pub(crate) async fn leases_of_one_moment_spread_as_single_ones_do(backend: Backend) {
    let api = &api(backend);
    let queue = queue(api, 2).await;
    for _ in 0..5 {
        api.produce_numbers(&queue, 10).await;
    }
    api.pause(&queue, true).await;
    let mut waiting = Vec::new();
    for (batch, count) in [(5, 1), (10, 2), (20, 3)] {
        waiting.push(api.lease_later(&queue, &unique("client"), batch));
        api.waiting(&queue, count).await;
    }
    api.pause(&queue, false).await;
    let mut sizes = Vec::new();
    for lease in waiting {
        let (status, answer) = lease.await.unwrap();
        assert_eq!(status, 200, "{answer}");
        sizes.push(Lease::of(&answer).items.len());
    }
    assert_eq!(sizes, [5, 10, 20]);
    assert_eq!(api.totals(&queue).await, [(30, 15), (20, 20)]);
}

pub(crate) async fn waiting_leases_share_the_partition_that_gets_the_items(backend: Backend) {
    let api = &api(backend);
    let queue = queue(api, 5).await;
    let waiting: Vec<_> = (0..5).map(|n| api.lease_later(&queue, &format!("client-{n}"), 10)).collect();
    api.waiting(&queue, 5).await;
    api.produce_numbers(&queue, 10).await;
    let mut seen = BTreeSet::new();
    for lease in waiting {
        let (status, answer) = lease.await.unwrap();
        assert_eq!(status, 200, "{answer}");
        let lease = Lease::of(&answer);
        assert_eq!(lease.items.len(), 2, "{lease:?}");
        seen.insert(lease.partition);
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
}

pub(crate) async fn a_lease_finds_items_wherever_they_are(backend: Backend) {
    let api = &api(backend);
    let queue = queue(api, 8).await;
    let expires = time(now() + 3600 * SECOND);
    for partition in [7, 0, 3, 5] {
        // Put there past the count of what was produced.
        let item = json!([{ "payload": "aW1wb3J0ZWQ=", "expire_deadline": expires }]);
        api.import(&queue, partition, &item).await;
        let first = api.lease(&queue, 3).await;
        assert_eq!((first.partition, first.texts()), (partition, vec!["imported".to_owned()]));
        api.retry(&queue, partition, &json!([{ "id": first.id() }])).await;
        let second = api.lease(&queue, 3).await;
        assert_eq!((second.partition, &second.items[0]["attempts"]), (partition, &json!(2)));
        api.complete(&queue, partition, &second.ids()).await;
    }
    assert_eq!(api.totals(&queue).await, [(0, 0); 8]);
}

pub(crate) async fn a_waiting_lease_finds_items_wherever_they_come(backend: Backend) {
    let api = &api(backend);
    let queue = queue(api, 4).await;
    for partition in [3, 1] {
        let waiting = api.lease_later(&queue, "patient", 5);
        api.waiting(&queue, 1).await;
        let item = json!([{ "payload": "eA==", "expire_deadline": time(now() + 3600 * SECOND) }]);
        api.import(&queue, partition, &item).await;
        let (status, answer) = waiting.await.unwrap();
        assert_eq!((status, Lease::of(&answer).partition), (200, partition), "{answer}");
    }
}

pub(crate) async fn everything_is_leased_once_and_each_answer_has_one_partition(backend: Backend) {
    let api = &api(backend);
    let queue = queue(api, 4).await;
    for _ in 0..25 {
        api.produce_numbers(&queue, 8).await;
    }
    let mut seen = BTreeSet::new();
    while seen.len() < 200 {
        let lease = api.lease(&queue, 30).await;
        assert!(lease.ids().is_sorted());
        for id in lease.ids() {
            assert!(seen.insert((lease.partition, id)), "an item was handed out twice");
        }
        api.complete(&queue, lease.partition, &lease.ids()).await;
    }
    api.nothing_to_lease(&queue).await;
}

pub(crate) async fn a_hundred_partitions_are_not_too_many(backend: Backend) {
    let api = &api(backend);
    let queue = queue(api, 100).await;
    for n in 0..100 {
        api.produce(&queue, &[&n.to_string()]).await;
    }
    assert_eq!(api.totals(&queue).await, [(1, 0); 100]);
    let mut seen = BTreeSet::new();
    for _ in 0..100 {
        seen.insert(api.lease(&queue, 1).await.partition);
    }
    assert_eq!(seen.len(), 100);
}

pub(crate) async fn a_partition_that_does_not_exist_is_refused(backend: Backend) {
    let api = &api(backend);
    let queue = queue(api, 3).await;
    let rpcs = ["queue.complete", "queue.retry", "storage/items.list", "storage/scheduled.list"];
    for rpc in rpcs.into_iter().chain(["storage/items.import", "storage/items.delete"]) {
        for partition in [3, -1, i32::MAX] {
            let request = json!({ "queue_name": queue, "partition": partition });
            let message = format!("partition is invalid; '{partition}' is not a valid partition");
            api.bad(rpc, &request, &message).await;
        }
    }
    api.ok("storage/items.list", &list_request(&queue, 2)).await;
}
