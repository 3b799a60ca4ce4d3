use super::*;
use crate::Outcome;

fn keeping(secs: u64) -> Settings {
    Settings { retain_completed: Some(Duration::from_secs(secs)), ..Settings::default() }
}

pub async fn a_completed_message_is_kept_as_long_as_the_queue_wants(h: &Harness) {
    let queue = h.queue_with(keeping(60)).await;
    let message = NewMessage { kind: Some("k".into()), key: None, ..NewMessage::new("x") };
    let enqueued = h.put_message(&queue, message).await;
    let worker = h.store.worker_register("w", None).await.unwrap().id;
    let claim = Claim { worker: Some(worker), ..Claim::from_queue(&queue, 1) };
    let taken = h.store.claim(claim).await.unwrap().remove(0);
    h.advance(1_000);
    h.complete(taken.fence()).await;
    let kept = h.store.archive_get(enqueued.id).await.unwrap().unwrap();
    assert_eq!((kept.outcome, kept.worker, kept.attempts), (Outcome::Completed, Some(worker), 1));
    assert_eq!((kept.created_at, kept.finished_at), (START, START + 1_000_000));
    assert_eq!((kept.kind.as_deref(), &kept.payload[..]), (Some("k"), &b"x"[..]));
    h.advance(59_999);
    assert_eq!(h.store.archive_prune(queue.id, None, 100).await.unwrap(), 0);
    h.advance(1);
    assert_eq!(h.store.archive_prune(queue.id, None, 100).await.unwrap(), 1);
    assert_eq!(h.store.archive_get(enqueued.id).await.unwrap(), None);
}

pub async fn nothing_is_kept_unless_the_queue_wants(h: &Harness) {
    let queue = h.queue().await;
    let enqueued = h.put(&queue, "x").await;
    h.complete(h.take_one(&queue).await.fence()).await;
    assert_eq!(h.store.archive_get(enqueued.id).await.unwrap(), None);
    assert_eq!(h.store.archive_count(queue.id).await.unwrap(), (0, 0));
}

pub async fn a_dead_message_is_replayed_once_with_fresh_attempts(h: &Harness) {
    let settings = Settings { max_attempts: Some(1), expire: Some(Duration::from_secs(100)), ..Settings::default() };
    let queue = h.queue_with(settings).await;
    let dead = h.put(&queue, "dead").await;
    h.take_one(&queue).await;
    h.advance(90_000);
    assert!(h.take(&queue, 1).await.is_empty());
    h.put(&queue, "living").await;
    let replayed = h.store.archive_replay(None, &[dead.id, 4711]).await.unwrap();
    assert!(replayed[0].is_some() && replayed[1].is_none(), "{replayed:?}");
    assert_eq!(h.store.archive_replay(None, &[dead.id]).await.unwrap(), [None]);
    assert_eq!(h.store.archive_get(dead.id).await.unwrap(), None);
    let taken = h.take(&queue, 9).await;
    assert_eq!(payloads(&taken), ["living", "dead"]);
    assert_eq!((taken[1].attempts, taken[1].identity()), (1, dead.id));
    assert_eq!(taken[1].expire_at, Some(START + 190_000_000));
    assert_eq!(h.complete(taken[1].fence()).await, Answer::Done);
}

pub async fn a_completed_message_is_never_replayed(h: &Harness) {
    let queue = h.queue_with(Settings { max_attempts: Some(1), ..keeping(60) }).await;
    let enqueued = h.put(&queue, "x").await;
    h.complete(h.take_one(&queue).await.fence()).await;
    assert_eq!(h.store.archive_replay(None, &[enqueued.id]).await.unwrap(), [None]);
    assert_eq!(h.store.archive_get(enqueued.id).await.unwrap().unwrap().outcome, Outcome::Completed);
    assert!(h.store.archive_dead(queue.id, None, 9).await.unwrap().is_empty());
    assert!(h.take(&queue, 1).await.is_empty());
}

pub async fn lists_are_newest_first_and_page_by_pivot(h: &Harness) {
    let queue = h.queue_with(keeping(60)).await;
    for n in 0..6 {
        let message = NewMessage { kind: Some(format!("kind{}", n % 2)), ..NewMessage::new(n.to_string()) };
        h.put_message(&queue, message).await;
        let fence = h.take_one(&queue).await.fence();
        match n % 3 {
            0 => h.store.bury(&[fence], "because").await.unwrap(),
            _ => h.store.complete(&[fence]).await.unwrap(),
        };
        h.advance(1);
    }
    let names = |list: &[crate::Archived]| {
        list.iter().map(|row| String::from_utf8_lossy(&row.payload).into_owned()).collect::<Vec<_>>()
    };
    let all = h.store.archive_list(queue.id, false, None, 4).await.unwrap();
    assert_eq!(names(&all), ["5", "4", "3", "2"]);
    let pivot = Some((all[3].finished_at, all[3].id));
    assert_eq!(names(&h.store.archive_list(queue.id, false, pivot, 9).await.unwrap()), ["2", "1", "0"]);
    assert_eq!(names(&h.store.archive_list(queue.id, true, None, 9).await.unwrap()), ["3", "0"]);
    assert_eq!(h.store.archive_count(queue.id).await.unwrap(), (2, 6));
    assert_eq!(h.store.archive_dead(queue.id, Some("kind1"), 9).await.unwrap(), [all[2].id]);
}

pub async fn pruning_goes_by_age_and_in_batches(h: &Harness) {
    let settings = Settings { retain_dead: Some(Duration::from_secs(120)), ..keeping(60) };
    let queue = h.queue_with(settings).await;
    h.store.enqueue(&queue, None, numbered(10)).await.unwrap();
    let fences: Vec<Fence> = h.take(&queue, 10).await.iter().map(Message::fence).collect();
    h.store.bury(&fences[..4], "because").await.unwrap();
    h.store.complete(&fences[4..]).await.unwrap();
    h.advance(60_000);
    let prune = |age| async move { h.store.archive_prune(queue.id, age, 4).await.unwrap() };
    assert_eq!((prune(None).await, prune(None).await, prune(None).await), (4, 2, 0));
    assert_eq!(prune(Some(Duration::from_secs(61))).await, 0);
    assert_eq!(prune(Some(Duration::from_secs(60))).await, 4);
}

pub async fn archiving_keeps_a_copy_whatever_the_retention_and_discarding_keeps_none(h: &Harness) {
    let queue = h.queue().await;
    let message = NewMessage { producer: Some(7), kind: Some("k".into()), ..NewMessage::new("x") };
    let first = h.put_message(&queue, message).await;
    let second = h.put(&queue, "y").await;
    h.advance(1_000);
    let taken = h.take(&queue, 2).await;
    h.advance(2_000);
    let kept = h.store.archive(&[Fence::any(4711), taken[0].fence()]).await.unwrap();
    let copy = kept[1].clone().unwrap();
    assert_eq!(kept[0], None);
    assert_eq!((copy.id, copy.outcome, copy.producer), (first.id, Outcome::Completed, Some(7)));
    assert_eq!((copy.leased_at, copy.finished_at), (Some(START + 1_000_000), START + 3_000_000));
    assert_eq!(h.store.archive_get(first.id).await.unwrap(), Some(copy));
    assert_eq!(h.store.archive(&[taken[0].fence()]).await.unwrap(), [None]);
    let keeping = h.store.queue_create("keeping", keeping(60)).await.unwrap();
    assert_eq!(h.store.discard(&[taken[1].fence()]).await.unwrap(), [Answer::Done]);
    h.put(&keeping, "z").await;
    assert_eq!(h.store.discard(&[h.take_one(&keeping).await.fence()]).await.unwrap(), [Answer::Done]);
    assert_eq!(h.store.archive_count(keeping.id).await.unwrap(), (0, 0));
    assert_eq!(h.store.archive_get(second.id).await.unwrap(), None);
}

pub async fn a_replay_keeps_to_its_queue(h: &Harness) {
    let queue = h.queue().await;
    let dead = h.put(&queue, "x").await;
    h.store.bury(&[h.take_one(&queue).await.fence()], "no").await.unwrap();
    assert_eq!(h.store.archive_replay(Some(queue.id + 1), &[dead.id]).await.unwrap(), [None]);
    let replayed = h.store.archive_replay(Some(queue.id), &[dead.id]).await.unwrap().remove(0).unwrap();
    assert_eq!((replayed.identity(), replayed.attempts, &replayed.payload[..]), (dead.id, 0, &b"x"[..]));
}

pub async fn an_archived_message_stays_for_the_retention_and_without_one_until_it_is_pruned(h: &Harness) {
    let week = Duration::from_secs(7 * 86_400);
    let plain = h.queue().await;
    let weekly = h.store.queue_create("weekly", Settings { retain_completed: Some(week), ..Settings::default() });
    let weekly = weekly.await.unwrap();
    for queue in [&plain, &weekly] {
        h.put(queue, "x").await;
        let fence = h.take_one(queue).await.fence();
        assert!(h.store.archive(&[fence]).await.unwrap()[0].is_some());
    }
    let prune = |queue: &Queue| h.store.archive_prune(queue.id, None, 100);
    h.clock.advance(week - Duration::from_micros(1));
    assert_eq!((prune(&plain).await.unwrap(), prune(&weekly).await.unwrap()), (0, 0));
    h.clock.advance(Duration::from_secs(10 * 365 * 86_400));
    assert_eq!((prune(&plain).await.unwrap(), prune(&weekly).await.unwrap()), (0, 1));
    // A dead message has a retention of its own.
    let settings = Settings { retain_dead: Some(week), ..Settings::default() };
    let plain = h.store.queue_update("jobs", settings).await.unwrap();
    assert_eq!(prune(&plain).await.unwrap(), 0);
    assert_eq!(h.store.archive_prune(plain.id, Some(week), 100).await.unwrap(), 1);
}

pub async fn completed_messages_stay_when_their_queue_loses_its_retention(h: &Harness) {
    let queue = h.queue_with(keeping(60)).await;
    h.put(&queue, "x").await;
    assert_eq!(h.complete(h.take_one(&queue).await.fence()).await, Answer::Done);
    h.store.queue_update("jobs", Settings::default()).await.unwrap();
    h.clock.advance(Duration::from_secs(365 * 86_400));
    h.store.maintain().await.unwrap();
    assert_eq!(h.store.archive_count(queue.id).await.unwrap(), (0, 1));
    // They go by hand, or when the queue has a retention again.
    h.store.queue_update("jobs", keeping(60)).await.unwrap();
    h.store.maintain().await.unwrap();
    assert_eq!(h.store.archive_count(queue.id).await.unwrap(), (0, 0));
}

pub async fn lists_merge_outcomes_in_the_order_of_their_times(h: &Harness) {
    let settings = Settings { expire: Some(Duration::from_secs(60)), ..keeping(600) };
    let queue = h.queue_with(settings).await;
    let mut ended = Vec::new();
    for round in 0..9 {
        let id = h.put(&queue, "x").await.id;
        match round % 3 {
            0 => drop(h.complete(h.take_one(&queue).await.fence()).await),
            1 => drop(h.store.bury(&[h.take_one(&queue).await.fence()], "no").await.unwrap()),
            _ => {
                h.advance(60_001);
                assert_eq!(h.store.sweep(queue.lanes[0]).await.unwrap(), 1);
            }
        }
        ended.insert(0, id);
    }
    let ids = |list: Vec<crate::Archived>| list.into_iter().map(|archived| archived.id).collect::<Vec<_>>();
    assert_eq!(ids(h.store.archive_list(queue.id, false, None, 99).await.unwrap()), ended);
    let dead: Vec<i64> = (0..9).filter(|place| (8 - place) % 3 != 0).map(|place| ended[place]).collect();
    assert_eq!(ids(h.store.archive_list(queue.id, true, None, 99).await.unwrap()), dead);
    let mut paged = Vec::new();
    let mut pivot = None;
    loop {
        let page = h.store.archive_list(queue.id, false, pivot, 4).await.unwrap();
        let Some(last) = page.last() else { break };
        pivot = Some((last.finished_at, last.id - 1));
        paged.extend(ids(page));
    }
    assert_eq!(paged, ended);
}
