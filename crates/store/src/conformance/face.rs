//! What faces need that park their callers themselves and whose callers may name any id.

use super::*;
use crate::{Due, End, Kind, Place, State};

async fn two(h: &Harness) -> (Queue, Queue) {
    (h.queue().await, h.store.queue_create("others", Settings::default()).await.unwrap())
}

pub async fn a_fence_within_a_lane_holds_nothing_elsewhere(h: &Harness) {
    let (queue, others) = two(h).await;
    for payload in ["a", "b"] {
        h.put(&queue, payload).await;
    }
    let ids: Vec<i64> = h.take(&queue, 2).await.iter().map(|message| message.id).collect();
    let foreign = Fence::any(ids[0]).within(others.lanes[0]);
    let soon = Some(Due::In(Duration::from_secs(1)));
    assert_eq!(h.store.complete(&[foreign]).await.unwrap(), [Answer::Lost]);
    assert_eq!(h.store.discard(&[foreign]).await.unwrap(), [Answer::Lost]);
    assert_eq!(h.store.release(&[foreign]).await.unwrap(), [Answer::Lost]);
    assert_eq!(h.store.retry(&[foreign], None, Place::Tail).await.unwrap(), [Answer::Lost]);
    assert_eq!(h.store.retry(&[foreign], soon, Place::Tail).await.unwrap(), [Answer::Lost]);
    assert_eq!(h.store.bury(&[foreign], "because").await.unwrap(), [Answer::Lost]);
    assert_eq!(h.store.extend(&[foreign], Duration::from_secs(1)).await.unwrap(), [None]);
    assert_eq!(h.store.archive(&[foreign]).await.unwrap(), [None]);
    assert_eq!(h.store.message_delete(Some(others.lanes[0]), &ids).await.unwrap(), [false, false]);
    assert_eq!(h.complete(Fence::any(ids[0]).within(queue.lanes[0])).await, Answer::Done);
    assert_eq!(h.store.message_delete(Some(queue.lanes[0]), &ids).await.unwrap(), [false, true]);
}

pub async fn leases_end_in_order_until_one_cannot_be(h: &Harness) {
    let queue = h.queue().await;
    for payload in ["a", "b", "c", "d"] {
        h.put(&queue, payload).await;
    }
    let leased = h.take(&queue, 3).await;
    let ready = h.store.message_list(queue.lanes[0], State::Ready, 0, 9).await.unwrap()[0].id;
    let end = |id: i64, end: End| (Fence::any(id).within(queue.lanes[0]), end);
    let later = End::Retry { due: Some(Due::In(Duration::from_secs(9))), place: Place::Tail };
    let answers = h
        .store
        .finish_in_order(vec![
            end(leased[0].id, End::Discard),
            end(leased[1].id, later),
            end(ready, End::Complete),
            end(leased[2].id, End::Complete),
        ])
        .await
        .unwrap();
    assert_eq!(answers, [Answer::Done, Answer::Done, Answer::Lost, Answer::Skipped]);
    let stats = h.store.lane_stats(queue.lanes[0]).await.unwrap();
    assert_eq!((stats.ready, stats.leased, stats.scheduled), (1, 1, 1));
    let tail = End::Retry { due: None, place: Place::Tail };
    let repeat = (Fence::any(leased[1].id).within(queue.lanes[0]), tail.clone());
    assert_eq!(h.store.finish_in_order(vec![repeat]).await.unwrap(), [Answer::Lost], "it is not leased any more");
    let answers = h.store.finish_in_order(vec![end(leased[2].id, tail), end(7_000_000, End::Discard)]).await.unwrap();
    assert_eq!(answers, [Answer::Done, Answer::Unknown]);
    let taken = h.take(&queue, 9).await;
    assert_eq!(payloads(&taken), ["d", "c"]);
    // The second first: that is how they stand at the tail.
    let back = |n: usize| end(taken[n].id, End::Retry { due: None, place: Place::Tail });
    assert_eq!(h.store.finish_in_order(vec![back(1), back(0)]).await.unwrap(), [Answer::Done; 2]);
    assert_eq!(payloads(&h.take(&queue, 9).await), ["c", "d"]);
}

pub async fn a_retry_after_the_last_attempt_buries(h: &Harness) {
    let queue = h.queue_with(Settings { max_attempts: Some(2), ..Settings::default() }).await;
    for payload in ["a", "b"] {
        h.put(&queue, payload).await;
    }
    let retry = |message: &Message, due: Option<Due>| {
        (Fence::any(message.id).within(queue.lanes[0]), End::Retry { due, place: Place::Tail })
    };
    let first = h.take(&queue, 2).await;
    let both: Vec<_> = first.iter().map(|message| retry(message, None)).collect();
    assert_eq!(h.store.finish_in_order(both).await.unwrap(), [Answer::Done; 2]);
    let second = h.take(&queue, 2).await;
    let later = Some(Due::In(Duration::from_secs(60)));
    let ends = vec![retry(&second[0], None), retry(&second[1], later)];
    assert_eq!(h.store.finish_in_order(ends).await.unwrap(), [Answer::Done; 2]);
    assert_eq!(h.store.archive_count(queue.id).await.unwrap().1, 2);
    let stats = h.store.lane_stats(queue.lanes[0]).await.unwrap();
    assert_eq!((stats.ready, stats.leased, stats.scheduled), (0, 0, 0));
}

pub async fn one_callers_failure_leaves_other_callers_alone(h: &Harness) {
    let queue = h.queue().await;
    for n in 0..40 {
        h.put(&queue, &n.to_string()).await;
    }
    let leased = h.take(&queue, 40).await;
    let mut calls = Vec::new();
    for pair in leased.chunks(2) {
        let mut chain: Vec<(Fence, End)> = pair.iter().map(|message| (message.fence(), End::Discard)).collect();
        chain.insert(1, (Fence::any(9_000_000), End::Discard));
        let store = h.store.clone();
        calls.push(tokio::spawn(async move { store.finish_in_order(chain).await.unwrap() }));
    }
    for call in calls {
        assert_eq!(call.await.unwrap(), [Answer::Done, Answer::Unknown, Answer::Skipped]);
    }
    assert_eq!(h.store.lane_stats(queue.lanes[0]).await.unwrap().leased, 20);
}

pub async fn a_watch_ends_when_something_becomes_ready_and_a_look_takes_it(h: &Harness) {
    let queue = h.queue_with(Settings { tail_on_expiry: true, ..Settings::default() }).await;
    let lane = queue.lanes[0];
    assert!(h.store.take(lane, 5).await.unwrap().is_empty());
    let mut watch = h.store.watch(&queue.lanes);
    h.put(&queue, "x").await;
    tokio::time::timeout(Duration::from_secs(5), watch.wait()).await.unwrap();
    let taken = h.store.take(lane, 5).await.unwrap();
    assert_eq!((payloads(&taken), taken[0].attempts), (vec!["x".to_owned()], 1));
    h.advance(30_000);
    assert_eq!(h.store.recover(lane).await.unwrap(), 0, "at its end a lease still holds");
    h.advance(1);
    assert_eq!(h.store.recover(lane).await.unwrap(), 1);
    let again = h.store.take(lane, 5).await.unwrap();
    assert!(again[0].id > taken[0].id && again[0].attempts == 2);
}

pub async fn ready_messages_are_counted_up_to_a_bound(h: &Harness) {
    let queue = h.queue().await;
    for n in 0..5 {
        h.put(&queue, &n.to_string()).await;
    }
    h.take(&queue, 1).await;
    assert_eq!(h.store.lane_ready(queue.lanes[0], 100).await.unwrap(), 4);
    assert_eq!(h.store.lane_ready(queue.lanes[0], 3).await.unwrap(), 3);
}

/// One turn of a walk over a lane, beside one over a lane that is not there.
async fn walk(h: &Harness, lane: i64, walked: i64) -> i64 {
    let mut tended = h.store.tend(&[(i64::MAX, 0), (lane, walked)]).await.unwrap();
    assert_eq!(tended.len(), 2);
    assert_eq!(tended.remove(0).unwrap(), 0);
    tended.remove(0).unwrap()
}

pub async fn tending_a_lane_does_what_is_due_wherever_it_stands(h: &Harness) {
    let settings = Settings { tail_on_expiry: true, max_attempts: Some(1), ..Settings::default() };
    let queue = h.queue_with(settings).await;
    let lane = queue.lanes[0];
    let with = |expire: u64| NewMessage { expire: Some(Duration::from_secs(expire)), ..NewMessage::new("x") };
    let messages: Vec<NewMessage> = (0..5500).map(|n| with(if n == 5400 { 10 } else { 3600 })).collect();
    h.store.enqueue(&queue, None, messages).await.unwrap();
    h.put_message(&queue, NewMessage { due: Some(Due::In(Duration::from_secs(5))), ..with(3600) }).await;
    assert_eq!(h.take(&queue, 2).await.len(), 2);
    h.advance(30_001);
    assert_eq!(h.store.lanes_due(10).await.unwrap(), [lane]);
    assert_eq!(h.store.promote(lane).await.unwrap(), 1);
    assert!(h.store.lanes_due(10).await.unwrap().is_empty());
    let walked = walk(h, lane, 0).await;
    assert!(walked > 0, "a long lane is not walked in one go");
    assert_eq!(walk(h, lane, walked).await, 0);
    // Two had used up their only attempt, one had expired, and the scheduled one has come.
    let stats = h.store.lane_stats(lane).await.unwrap();
    assert_eq!((stats.ready, stats.leased, stats.scheduled), (5498, 0, 0));
    assert_eq!(h.store.archive_count(queue.id).await.unwrap().1, 3);
}

pub async fn tending_leaves_alone_what_keeps_its_place(h: &Harness) {
    let queue = h.queue().await;
    h.put(&queue, "first").await;
    h.put(&queue, "second").await;
    let first = h.take_one(&queue).await;
    h.advance(30_001);
    assert_eq!(walk(h, queue.lanes[0], 0).await, 0);
    let again = h.take(&queue, 9).await;
    assert_eq!((payloads(&again), again[0].id), (vec!["first".to_owned(), "second".to_owned()], first.id));
}

pub async fn a_queue_may_have_only_some_of_its_partitions_here(h: &Harness) {
    let settings = Settings { partitions: 5, placement: "main=2,east=3".to_owned(), ..Settings::default() };
    let created = h.store.queue_create_part("spread", settings.clone(), 2).await.unwrap();
    assert_eq!((created.lanes.len(), created.settings.partitions), (2, 5));
    let changed = Settings { placement: "elsewhere=5".to_owned(), max_attempts: Some(3), ..settings };
    let updated = h.store.queue_update("spread", changed).await.unwrap();
    assert_eq!((updated.settings.placement.as_str(), updated.settings.max_attempts), ("main=2,east=3", Some(3)));
    assert_eq!(h.store.queue_get("spread").await.unwrap(), updated);
    let error = h.store.enqueue(&updated, Some(2), vec![NewMessage::new("x")]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
}
