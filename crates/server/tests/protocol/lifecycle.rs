//! What time does to items: leases that run out, items that expire, scheduled ones that come due; under a clock that is
//! set with every request, after a restart, and a little on the real clock.

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::queue::{Lease, complete_request, ids, texts};
use crate::support::text::{MILLISECOND, NO_TIME, SECOND, nanos, now, text, time};
use crate::support::{Backend, Place, Server, shared};

/// A server of its own, whose clock is set by every request.
struct Timeline {
    place: Place,
    server: Server,
    api: Api,
    start: i64,
}

impl Timeline {
    fn new(backend: Backend) -> Self {
        let place = Place::new(backend);
        let server = place.start(&["--test-hooks"]);
        let api = server.api();
        // Ahead of the real clock, with which a server starts, and in whole seconds.
        Timeline { place, server, api, start: (now() / SECOND + 3600) * SECOND }
    }

    /// The server, so many seconds after the start.
    fn at(&self, seconds: i64) -> Api {
        self.at_millis(seconds * 1000)
    }

    fn at_millis(&self, millis: i64) -> Api {
        self.api.at(self.start + millis * MILLISECOND)
    }

    /// That time in JSON.
    fn time(&self, seconds: i64) -> Value {
        time(self.start + seconds * SECOND).into()
    }

    fn crash_and_restart(&mut self) {
        self.server.kill();
        self.server = self.place.start(&["--test-hooks"]);
        self.api = self.server.api();
    }

    /// An item for later.
    fn later(&self, text: &str, seconds: i64) -> Value {
        json!({ "utf8": text, "enqueue_at": self.time(seconds) })
    }
}

pub(crate) async fn an_expired_lease_goes_to_the_tail_under_a_new_id(backend: Backend) {
    let t = Timeline::new(backend);
    let queue = t.at(0).queue(&json!({ "lease_timeout": "60s", "expire_timeout": "1h" })).await;
    t.at(0).produce(&queue, &["a", "b"]).await;
    let lease = t.at(10).lease(&queue, 1).await;
    assert_eq!((lease.texts(), &lease.items[0]["lease_deadline"]), (vec!["a".to_owned()], &t.time(70)));
    let before = t.at(69).items(&queue, 0).await;
    assert_eq!((texts(&before), &before[0]["is_leased"]), (vec!["a".to_owned(), "b".to_owned()], &json!(true)));

    let after = t.at(71).items(&queue, 0).await;
    assert_eq!(texts(&after), ["b", "a"]);
    assert!(ids(&after).is_sorted() && text(&after[1], "id") != lease.id(), "{after:?}");
    assert_eq!((after[1].get("is_leased"), &after[1]["lease_deadline"]), (None, &json!(NO_TIME)));
    assert_eq!((&after[1]["attempts"], &after[1]["expire_deadline"]), (&json!(1), &t.time(3600)));
    let message = format!("invalid storage id; '{}' does not exist", lease.id());
    t.at(71).bad("queue.complete", &complete_request(&queue, 0, &lease.ids()), &message).await;
    let again = t.at(72).lease(&queue, 2).await;
    assert_eq!(again.texts(), ["b", "a"]);
    assert_eq!((&again.items[0]["attempts"], &again.items[1]["attempts"]), (&json!(1), &json!(2)));
}

pub(crate) async fn a_lease_holds_up_to_its_deadline(backend: Backend) {
    let t = Timeline::new(backend);
    let queue = t.at(0).queue(&json!({ "lease_timeout": "60s" })).await;
    t.at(0).produce(&queue, &["a"]).await;
    let lease = t.at(0).lease(&queue, 1).await;
    assert_eq!(t.at(60).items(&queue, 0).await[0]["is_leased"], true);
    t.at(60).nothing_to_lease(&queue).await;
    t.at(60).complete(&queue, 0, &lease.ids()).await;
}

pub(crate) async fn an_item_without_attempts_left_goes_to_the_dead_queue(backend: Backend) {
    let t = Timeline::new(backend);
    let dead = t.at(0).queue(&json!({ "expire_timeout": "2h", "requested_partitions": 3 })).await;
    let more = json!({ "lease_timeout": "60s", "max_attempts": 2, "dead_queue": dead, "requested_partitions": 2 });
    let queue = t.at(0).queue(&more).await;
    let item = json!({ "utf8": "poison", "kind": "k", "encoding": "e", "reference": "r" });
    t.at(0).produce_items(&queue, &[item]).await;
    t.at(0).lease(&queue, 1).await;
    let last = t.at(100).lease(&queue, 1).await;
    assert_eq!(last.items[0]["attempts"], 2);
    assert!(t.at(150).items(&dead, 0).await.is_empty());

    let found = t.at(200).items(&dead, 0).await;
    assert_eq!(t.at(200).totals(&queue).await, [(0, 0), (0, 0)]);
    assert_eq!(found.len(), 1, "{found:?}");
    let mut copy = found[0].clone();
    assert_ne!(copy["id"].take(), last.id().as_str());
    let expected = json!({
        "id": null, "source_id": last.id(), "lease_deadline": NO_TIME, "expire_deadline": t.time(200 + 7200),
        "created_at": t.time(200), "kind": "k", "encoding": "e", "reference": "r", "payload": "cG9pc29u",
    });
    copy.as_object_mut().unwrap().remove("max_attempts");
    assert_eq!(copy, expected);
    let lease = t.at(201).lease(&dead, 1).await;
    assert_eq!((lease.partition, &lease.items[0]["attempts"]), (0, &json!(1)));
}

pub(crate) async fn an_item_without_attempts_left_is_deleted_where_there_is_no_dead_queue(backend: Backend) {
    let t = Timeline::new(backend);
    let queue = t.at(0).queue(&json!({ "lease_timeout": "60s", "max_attempts": 1 })).await;
    t.at(0).produce(&queue, &["a"]).await;
    t.at(0).lease(&queue, 1).await;
    assert_eq!(t.at(61).totals(&queue).await, [(0, 0)]);
    t.at(61).nothing_to_lease(&queue).await;
}

pub(crate) async fn the_last_permitted_attempt_is_not_taken_away(backend: Backend) {
    let t = Timeline::new(backend);
    let queue = t.at(0).queue(&json!({ "lease_timeout": "60s", "max_attempts": 1 })).await;
    t.at(0).produce(&queue, &["a", "b"]).await;
    t.at(0).lease(&queue, 1).await;
    let held = t.at(30).lease(&queue, 1).await;
    // The other one dies; this one is being worked on.
    let items = t.at(61).items(&queue, 0).await;
    assert_eq!((texts(&items), &items[0]["is_leased"]), (vec!["b".to_owned()], &json!(true)));
    t.at(89).complete(&queue, 0, &held.ids()).await;
}

pub(crate) async fn an_item_that_nobody_leased_expires_once(backend: Backend) {
    let t = Timeline::new(backend);
    let dead = t.at(0).plain_queue().await;
    let queue = t.at(0).queue(&json!({ "expire_timeout": "10m", "dead_queue": dead })).await;
    let silent = t.at(0).queue(&json!({ "expire_timeout": "10m" })).await;
    t.at(0).produce(&queue, &["a"]).await;
    t.at(0).produce(&silent, &["b"]).await;
    t.at(300).produce(&queue, &["younger"]).await;
    let id = text(&t.at(600).items(&queue, 0).await[0], "id");

    assert_eq!(texts(&t.at(601).items(&queue, 0).await), ["younger"]);
    assert!(t.at(601).items(&silent, 0).await.is_empty(), "without a dead queue it is gone");
    let copies = t.at(601).items(&dead, 0).await;
    assert_eq!((texts(&copies), &copies[0]["source_id"]), (vec!["a".to_owned()], &json!(id)));
    let lease = t.at(602).lease(&dead, 1).await;
    t.at(602).complete(&dead, 0, &lease.ids()).await;
    // The copy is consumed: no second one comes, and the next deadline is not forgotten.
    assert!(t.at(700).items(&dead, 0).await.is_empty());
    assert_eq!(texts(&t.at(901).items(&dead, 0).await), ["younger"]);
}

pub(crate) async fn an_item_expires_while_it_is_leased(backend: Backend) {
    let t = Timeline::new(backend);
    let dead = t.at(0).plain_queue().await;
    let more = json!({ "lease_timeout": "60s", "expire_timeout": "10m", "dead_queue": dead });
    let queue = t.at(0).queue(&more).await;
    t.at(0).produce(&queue, &["a"]).await;
    let lease = t.at(590).lease(&queue, 1).await;
    assert_eq!(texts(&t.at(601).items(&dead, 0).await), ["a"]);
    let message = format!("invalid storage id; '{}' does not exist", lease.id());
    t.at(601).bad("queue.complete", &complete_request(&queue, 0, &lease.ids()), &message).await;
}

pub(crate) async fn scheduled_items_come_due_in_their_order_at_the_tail(backend: Backend) {
    let t = Timeline::new(backend);
    let queue = t.at(0).plain_queue().await;
    t.at(0).produce_items(&queue, &[t.later("10 s, first", 10), t.later("10 s, second", 10)]).await;
    t.at(0).produce_items(&queue, &[t.later("10 s, third", 10), t.later("5 s", 5), t.later("20 s", 20)]).await;
    t.at(1).produce(&queue, &["meanwhile"]).await;
    assert_eq!(t.at(4).scheduled(&queue, 0).await.len(), 5);
    assert_eq!(texts(&t.at(4).items(&queue, 0).await), ["meanwhile"]);

    let lease = t.at(11).lease(&queue, 10).await;
    assert_eq!(lease.texts(), ["meanwhile", "5 s", "10 s, first", "10 s, second", "10 s, third"]);
    assert!(lease.ids().is_sorted() && lease.items.iter().all(|item| item["attempts"] == 1));
    assert_eq!(texts(&t.at(19).scheduled(&queue, 0).await), ["20 s"], "a later one is not forgotten");
    assert_eq!(t.at(21).lease(&queue, 10).await.texts(), ["20 s"]);
}

pub(crate) async fn a_tenth_of_a_second_is_not_worth_scheduling(backend: Backend) {
    let t = Timeline::new(backend);
    let queue = t.at(0).plain_queue().await;
    let at = |millis: i64| time(t.start + millis * MILLISECOND);
    let items = [json!({ "utf8": "99", "enqueue_at": at(99) }), json!({ "utf8": "100", "enqueue_at": at(100) })];
    t.at(0).produce_items(&queue, &items).await;
    assert_eq!(texts(&t.at(0).items(&queue, 0).await), ["99"]);
    assert_eq!(texts(&t.at(0).scheduled(&queue, 0).await), ["100"]);

    let queue = t.at(0).plain_queue().await;
    t.at(0).produce(&queue, &["99", "100"]).await;
    let lease = t.at(0).lease(&queue, 2).await;
    let retries = json!([
        { "id": lease.ids()[0], "retry_at": at(99) },
        { "id": lease.ids()[1], "retry_at": at(100) },
    ]);
    t.at(0).retry(&queue, 0, &retries).await;
    assert_eq!(texts(&t.at(0).items(&queue, 0).await), ["99"]);
    assert_eq!(texts(&t.at(0).scheduled(&queue, 0).await), ["100"]);
}

pub(crate) async fn a_scheduled_item_does_not_expire_before_its_time(backend: Backend) {
    let t = Timeline::new(backend);
    let queue = t.at(0).queue(&json!({ "expire_timeout": "10m" })).await;
    t.at(0).produce_items(&queue, &[t.later("patient", 3600)]).await;
    assert_eq!(texts(&t.at(3599).scheduled(&queue, 0).await), ["patient"]);
}

pub(crate) async fn a_retry_for_later_comes_back_at_its_time(backend: Backend) {
    let t = Timeline::new(backend);
    let queue = t.at(0).queue(&json!({ "requested_partitions": 2, "lease_timeout": "60s" })).await;
    t.at(0).produce(&queue, &["a"]).await;
    let lease = t.at(0).lease(&queue, 1).await;
    t.at(1).retry(&queue, lease.partition, &json!([{ "id": lease.id(), "retry_at": t.time(300) }])).await;
    // The lease that it had would have run out by now.
    assert_eq!(ids(&t.at(299).scheduled(&queue, lease.partition).await), lease.ids());
    let again = t.at(301).lease(&queue, 1).await;
    assert_eq!((again.partition, &again.items[0]["attempts"]), (lease.partition, &json!(2)));
    t.at(301).complete(&queue, again.partition, &again.ids()).await;
}

pub(crate) async fn what_comes_due_wakes_waiting_leases(backend: Backend) {
    let t = Timeline::new(backend);
    let more = json!({ "lease_timeout": "60s", "requested_partitions": 2 });
    let (expiring, scheduling) = (t.at(0).queue(&more).await, t.at(0).queue(&more).await);
    t.at(0).produce(&expiring, &["expired"]).await;
    t.at(0).lease(&expiring, 1).await;
    t.at(0).produce_items(&scheduling, &[t.later("due", 60)]).await;
    let waiting = [("expired", &expiring), ("due", &scheduling)];
    let waiting = waiting.map(|(text, queue)| (text, t.at(1).lease_later(queue, "patient", 1)));
    t.at(1).waiting(&expiring, 1).await;
    t.at(1).waiting(&scheduling, 1).await;
    // Nothing happens to either queue but time.
    t.at(61).ok("namespaces.list", &json!({})).await;
    for (text, lease) in waiting {
        let (status, answer) = lease.await.unwrap();
        assert_eq!(status, 200, "{text}: {answer}");
        assert_eq!(Lease::of(&answer).texts(), [text]);
    }
}

pub(crate) async fn new_settings_hold_for_items_when_they_are_next_looked_at(backend: Backend) {
    let t = Timeline::new(backend);
    let dead = t.at(0).plain_queue().await;
    let queue = t.at(0).queue(&json!({ "lease_timeout": "60s" })).await;
    t.at(0).produce(&queue, &["a"]).await;
    t.at(0).lease(&queue, 1).await;
    let request = json!({ "queue_name": queue, "max_attempts": 1, "dead_queue": dead });
    t.at(30).done("queues.update", &request).await;
    assert_eq!(t.at(59).totals(&queue).await, [(1, 1)]);
    assert_eq!(texts(&t.at(61).items(&dead, 0).await), ["a"]);
    assert_eq!(t.at(61).totals(&queue).await, [(0, 0)]);
}

pub(crate) async fn what_came_due_while_the_server_was_away_happens_when_it_is_back(backend: Backend) {
    let mut t = Timeline::new(backend);
    let dead = t.at(0).plain_queue().await;
    let leased = t.at(0).queue(&json!({ "lease_timeout": "60s" })).await;
    let doomed = t.at(0).queue(&json!({ "lease_timeout": "60s", "max_attempts": 1, "dead_queue": dead })).await;
    let expiring = t.at(0).queue(&json!({ "expire_timeout": "10m", "dead_queue": dead })).await;
    let scheduled = t.at(0).plain_queue().await;
    for queue in [&leased, &doomed] {
        t.at(0).produce(queue, &["leased"]).await;
        t.at(0).lease(queue, 1).await;
    }
    t.at(0).produce(&expiring, &["expired"]).await;
    t.at(0).produce_items(&scheduled, &[t.later("due", 300), t.later("due later", 2000)]).await;
    t.crash_and_restart();

    let again = t.at(700).lease(&leased, 1).await;
    assert_eq!((again.texts(), &again.items[0]["attempts"]), (vec!["leased".to_owned()], &json!(2)));
    let due = t.at(700).lease(&scheduled, 5).await;
    assert_eq!(due.texts(), ["due"]);
    t.at(700).complete(&scheduled, 0, &due.ids()).await;
    let mut copies = texts(&t.at(700).items(&dead, 0).await);
    copies.sort_unstable();
    assert_eq!(copies, ["expired", "leased"]);
    assert_eq!((t.at(700).totals(&doomed).await, t.at(700).totals(&expiring).await), (vec![(0, 0)], vec![(0, 0)]));
    assert_eq!(t.at(2001).lease(&scheduled, 5).await.texts(), ["due later"]);
}

pub(crate) async fn on_the_real_clock_an_expired_lease_passes_on_soon_and_never_early(backend: Backend) {
    let api = &shared(backend, "real_time", &[]);
    let queue = api.queue(&json!({ "lease_timeout": "700ms" })).await;
    api.produce(&queue, &["hot potato"]).await;
    let mut deadline = 0;
    for attempt in 1..=4 {
        let lease = api.lease(&queue, 1).await;
        assert!(now() >= deadline, "attempt {attempt} came before the deadline of the one before");
        assert_eq!(lease.items[0]["attempts"], attempt);
        deadline = nanos(&lease.items[0]["lease_deadline"]);
    }
}

pub(crate) async fn on_the_real_clock_an_expired_lease_goes_to_the_tail_although_no_client_waits(backend: Backend) {
    let api = &shared(backend, "real_time", &[]);
    let queue = api.queue(&json!({ "lease_timeout": "700ms" })).await;
    api.produce(&queue, &["hot potato"]).await;
    // The walk over all queues meets such a lease too, up to five seconds later. A machine may stall in some of the rounds.
    let mut late = Vec::new();
    for _ in 0..5 {
        let lease = api.lease(&queue, 1).await;
        let deadline = nanos(&lease.items[0]["lease_deadline"]);
        while text(&api.items(&queue, 0).await[0], "id") == lease.id() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        late.push((now() - deadline) / MILLISECOND);
    }
    late.sort_unstable();
    assert!(late[2] < 500, "{late:?} ms after the deadlines");
}

pub(crate) async fn on_the_real_clock_a_scheduled_item_comes_soon_and_never_early(backend: Backend) {
    let api = &shared(backend, "real_time", &[]);
    let queue = api.plain_queue().await;
    for round in ["one", "two"] {
        let waiting = api.lease_later(&queue, "patient", 1);
        api.waiting(&queue, 1).await;
        let due = now() + 1500 * MILLISECOND;
        api.produce_items(&queue, &[json!({ "utf8": round, "enqueue_at": time(due) })]).await;
        let (status, answer) = waiting.await.unwrap();
        assert!(now() >= due, "it came too early");
        assert_eq!((status, Lease::of(&answer).texts()), (200, vec![round.to_owned()]), "{answer}");
    }
}

pub(crate) async fn a_backlog_of_expired_items_does_not_hold_up_fresh_ones(backend: Backend) {
    const BACKLOG: usize = 20_000;
    let place = Place::new(backend);
    let server = place.start(&[]);
    let api = &server.api();
    let dead = api.plain_queue().await;
    let settings = json!({ "expire_timeout": "10s", "lease_timeout": "10s", "dead_queue": dead });
    let queue = api.queue(&settings).await;
    api.produce_numbers(&queue, BACKLOG).await;
    tokio::time::sleep(std::time::Duration::from_millis(10_100)).await;
    // Fresh items live longer than a machine can stall.
    let longer = json!({ "queue_name": queue, "expire_timeout": "10m", "lease_timeout": "10s", "dead_queue": dead });
    api.done("queues.update", &longer).await;
    // Each lease is answered in its time, with what is fresh, while the backlog is being buried.
    for n in 0..5 {
        let fresh = format!("fresh {n}");
        api.produce(&queue, &[&fresh]).await;
        let lease = api.lease(&queue, 1000).await;
        assert_eq!(lease.texts(), [fresh]);
        api.complete(&queue, lease.partition, &lease.ids()).await;
        let failures =
            &api.ok("queue.stats", &json!({ "queue_name": queue })).await["logical_queues"][0]["partitions"][0];
        assert_eq!(failures.get("failures").and_then(Value::as_i64).unwrap_or(0), 0, "{failures}");
    }
    let buried = async || (api.totals(&dead).await[0].0 == BACKLOG as i64).then_some(());
    crate::support::eventually("the whole backlog is in the dead queue, once", buried).await;
}
