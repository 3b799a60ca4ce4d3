use super::*;
use crate::{Clear, Due, Import, Kind, LaneStats, Place, State};

/// Two ready, one leased, one scheduled; the leased one is "0".
async fn mixed(h: &Harness, queue: &Queue) -> Vec<Enqueued> {
    let later = NewMessage { due: Some(Due::In(Duration::from_secs(60))), ..NewMessage::new("later") };
    let mut batch = numbered(3);
    batch.push(later);
    let enqueued = h.store.enqueue(queue, None, batch).await.unwrap();
    h.take_one(queue).await;
    enqueued
}

pub async fn lists_show_each_state_from_the_pivot_on(h: &Harness) {
    let queue = h.queue().await;
    let ids = mixed(h, &queue).await;
    let list = |state, pivot, limit| {
        let lane = queue.lanes[0];
        async move { payloads(&h.store.message_list(lane, state, pivot, limit).await.unwrap()) }
    };
    assert_eq!(list(State::Ready, 0, 9).await, ["1", "2"]);
    assert_eq!(list(State::Leased, 0, 9).await, ["0"]);
    assert_eq!(list(State::Live, 0, 9).await, ["0", "1", "2"]);
    assert_eq!(list(State::Scheduled, 0, 9).await, ["later"]);
    assert_eq!(list(State::Live, ids[1].id, 1).await, ["1"]);
    assert!(list(State::Live, ids[3].id + 1, 9).await.is_empty());
    h.advance(30_000);
    assert_eq!(list(State::Ready, 0, 9).await, ["0", "1", "2"]);
}

pub async fn a_message_is_found_by_identity_wherever_it_is(h: &Harness) {
    let queue = h.queue().await;
    let ids = mixed(h, &queue).await;
    let get = |id| async move { h.store.message_get(id).await.unwrap() };
    assert_eq!(get(ids[1].id).await.unwrap().payload, "1");
    assert_eq!(get(ids[3].id).await.unwrap().due_at, Some(START + 60_000_000));
    let taken = h.take_one(&queue).await;
    h.store.retry(&[taken.fence()], None, Place::Tail).await.unwrap();
    let moved = get(ids[1].id).await.unwrap();
    assert!(moved.id > ids[3].id && moved.payload == "1");
    assert_eq!(get(moved.id).await, None, "a position is not an identity");
    h.advance(60_000);
    h.store.promote(queue.lanes[0]).await.unwrap();
    assert_eq!(get(ids[3].id).await.unwrap().payload, "later");
    assert_eq!(get(999_999).await, None);
}

pub async fn stats_are_exact(h: &Harness) {
    let queue = h.queue().await;
    let empty = LaneStats { lane: queue.lanes[0], ..LaneStats::default() };
    assert_eq!(h.store.lane_stats(queue.lanes[0]).await.unwrap(), empty);
    mixed(h, &queue).await;
    h.advance(10_000);
    h.put(&queue, "young").await;
    let stats = h.store.lane_stats(queue.lanes[0]).await.unwrap();
    assert_eq!((stats.ready, stats.leased, stats.scheduled), (3, 1, 1));
    assert_eq!(stats.oldest_ready, Some(Duration::from_secs(10)));
    assert_eq!(stats.average_age, Some(Duration::from_millis(7_500)));
    assert_eq!(stats.average_lease_left, Some(Duration::from_secs(20)));
}

pub async fn clearing_takes_only_what_it_is_told(h: &Harness) {
    let queue = h.queue().await;
    let lane = queue.lanes[0];
    let clear = |which| async move { h.store.lane_clear(lane, which).await.unwrap() };
    mixed(h, &queue).await;
    assert_eq!(clear(Clear::default()).await, 0);
    assert_eq!(clear(Clear { ready: true, ..Clear::default() }).await, 2);
    assert_eq!(clear(Clear { scheduled: true, ..Clear::default() }).await, 1);
    assert_eq!(h.store.lane_stats(lane).await.unwrap().leased, 1);
    assert_eq!(clear(Clear { leased: true, ..Clear::default() }).await, 1);
    mixed(h, &queue).await;
    assert_eq!(clear(Clear { ready: true, leased: true, scheduled: true }).await, 4);
    assert!(h.take(&queue, 9).await.is_empty());
}

pub async fn a_deleted_message_is_gone_whatever_its_state(h: &Harness) {
    let queue = h.queue().await;
    let ids = mixed(h, &queue).await;
    let asked = [ids[0].id, 999_999, ids[3].id, ids[2].id];
    assert_eq!(h.store.message_delete(None, &asked).await.unwrap(), [true, false, true, true]);
    assert_eq!(h.store.message_delete(None, &asked).await.unwrap(), [false; 4]);
    assert_eq!(h.complete(Fence::exact(ids[0].id, 1)).await, Answer::Unknown);
    h.advance(60_000);
    assert_eq!(payloads(&h.take(&queue, 9).await), ["1"]);
}

pub async fn an_import_is_stored_as_it_is_and_once_per_source(h: &Harness) {
    let queue = h.queue_with(Settings { partitions: 2, ..Settings::default() }).await;
    let item = |source: Option<&str>, payload: &str| Import {
        source_id: source.map(str::to_owned),
        payload: Bytes::from(payload.to_owned()),
        ..Import::default()
    };
    let leased = Import {
        leased_until: START + 5_000_000,
        expire_at: Some(START + 9_000_000),
        attempts: 3,
        max_attempts: Some(8),
        kind: Some("k".into()),
        encoding: Some("e".into()),
        reference: Some("r".into()),
        ..item(Some("s1"), "leased")
    };
    let batch = vec![leased.clone(), item(None, "plain"), item(Some("s1"), "twin"), item(Some("s2"), "two")];
    let ids = h.store.message_import(queue.lanes[0], batch).await.unwrap();
    assert_eq!(ids.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, true]);
    let again = h.store.message_import(queue.lanes[0], vec![item(Some("s2"), "x"), item(None, "y")]).await.unwrap();
    assert_eq!(again.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true]);
    let elsewhere = h.store.message_import(queue.lanes[1], vec![item(Some("s2"), "x")]).await.unwrap();
    assert!(elsewhere[0].is_some());
    let stored = h.store.message_list(queue.lanes[0], State::Live, 0, 9).await.unwrap();
    assert_eq!(payloads(&stored), ["leased", "plain", "two", "y"]);
    let first = &stored[0];
    assert_eq!((first.leased_until, first.expire_at), (leased.leased_until, leased.expire_at));
    assert_eq!((first.attempts, first.max_attempts, first.source_id.as_deref()), (3, Some(8), Some("s1")));
    assert_eq!((&first.kind, &first.encoding, &first.reference), (&leased.kind, &leased.encoding, &leased.reference));
    // A source id can be used again when its message is gone.
    h.store.message_delete(None, &[ids[3].unwrap()]).await.unwrap();
    assert!(h.store.message_import(queue.lanes[0], vec![item(Some("s2"), "z")]).await.unwrap()[0].is_some());
    let error = h.store.message_import(424_242, vec![item(None, "x")]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}

pub async fn an_import_of_a_leased_message_with_a_key_is_refused(h: &Harness) {
    let queue = h.queue().await;
    let import = |key: Option<&str>, leased_until| Import {
        key: key.map(str::to_owned),
        leased_until,
        payload: Bytes::from("x"),
        ..Import::default()
    };
    let batch = vec![import(None, START + 1), import(Some("a"), START + 1)];
    let error = h.store.message_import(queue.lanes[0], batch).await.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
    assert!(error.to_string().contains("\"a\" is leased with its key"), "{error}");
    assert_eq!(h.store.message_list(queue.lanes[0], State::Live, 0, 9).await.unwrap(), []);
    h.store.message_import(queue.lanes[0], vec![import(Some("a"), 0)]).await.unwrap();
    let batch = h.store.claim_key(&queue.lanes, None, None, Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(h.store.key_complete(batch.token).await.unwrap(), Answer::Done);
}

pub async fn the_greatest_limit_means_everything(h: &Harness) {
    let queue = h.queue_with(Settings { partitions: 2, ..Settings::default() }).await;
    mixed(h, &queue).await;
    let lane = queue.lanes[0];
    for state in [State::Ready, State::Leased, State::Live, State::Scheduled] {
        assert!(!h.store.message_list(lane, state, 0, usize::MAX).await.unwrap().is_empty(), "{state:?}");
    }
    assert_eq!(h.store.queue_list("", None, usize::MAX).await.unwrap().len(), 1);
    assert_eq!(h.store.lane_ready(lane, usize::MAX).await.unwrap(), 2);
    // Two claims that wait together ask for twice as much.
    let claims = (0..2).map(|_| h.store.claim(Claim::from_queue(&queue, usize::MAX)));
    let taken: Vec<Message> = futures_util::future::try_join_all(claims).await.unwrap().concat();
    assert_eq!(taken.len(), 2);
    let fences: Vec<Fence> = taken.iter().map(Message::fence).collect();
    h.store.bury(&fences, "because").await.unwrap();
    assert_eq!(h.store.archive_list(queue.id, true, None, usize::MAX).await.unwrap().len(), 2);
    assert_eq!(h.store.archive_dead(queue.id, None, usize::MAX).await.unwrap().len(), 2);
    h.advance(60_000);
    assert_eq!(h.store.lanes_due(usize::MAX).await.unwrap(), [lane]);
    assert_eq!(h.store.archive_prune(queue.id, Some(Duration::ZERO), usize::MAX).await.unwrap(), 2);
    h.store.event_append("s", 1, &[crate::Event { id: 1, data: Bytes::from("x") }]).await.unwrap();
    assert_eq!(h.store.event_read("s", 1, 0, usize::MAX).await.unwrap().len(), 1);
}
