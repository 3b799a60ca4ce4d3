use super::*;
use crate::{Due, Place};

/// Takes a message, lets the lease run out, and takes it again: the first fence is stale, the second is good.
async fn stale_and_good(h: &Harness, queue: &Queue, worker: Option<i64>) -> (Fence, Fence) {
    h.put(queue, "x").await;
    let claim = Claim { worker, ..Claim::from_queue(queue, 1) };
    let stale = h.store.claim(claim.clone()).await.unwrap()[0].fence();
    h.advance(30_000);
    let good = h.store.claim(claim).await.unwrap()[0].fence();
    (stale, good)
}

async fn nothing_works(h: &Harness, stale: Fence) {
    let soon = Some(Due::In(Duration::from_secs(1)));
    assert_eq!(h.store.complete(&[stale]).await.unwrap(), [Answer::Lost]);
    assert_eq!(h.store.release(&[stale]).await.unwrap(), [Answer::Lost]);
    assert_eq!(h.store.retry(&[stale], None, Place::Tail).await.unwrap(), [Answer::Lost]);
    assert_eq!(h.store.retry(&[stale], soon, Place::Keep).await.unwrap(), [Answer::Lost]);
    assert_eq!(h.store.bury(&[stale], "because").await.unwrap(), [Answer::Lost]);
    assert_eq!(h.store.extend(&[stale], Duration::from_secs(1)).await.unwrap(), [None]);
}

pub async fn a_stale_holder_can_do_nothing(h: &Harness) {
    let queue = h.queue().await;
    let (stale, good) = stale_and_good(h, &queue, None).await;
    nothing_works(h, stale).await;
    assert_eq!(h.complete(good).await, Answer::Done);
}

pub async fn the_same_worker_with_an_old_lease_can_do_nothing(h: &Harness) {
    let queue = h.queue().await;
    let worker = h.store.worker_register("w", None).await.unwrap().id;
    let (stale, good) = stale_and_good(h, &queue, Some(worker)).await;
    nothing_works(h, stale).await;
    assert_eq!(h.complete(good).await, Answer::Done);
}

pub async fn a_snoozed_lease_is_lost_once_its_message_is_leased_again(h: &Harness) {
    let queue = h.queue().await;
    let id = h.put(&queue, "x").await.id;
    let rest = Duration::from_secs(1);
    let old = h.take_one(&queue).await.fence();
    for expected in [Answer::Done, Answer::Already] {
        assert_eq!(h.store.snooze(&[old], rest).await.unwrap(), [expected]);
    }
    h.advance(1000);
    let again = h.take_one(&queue).await;
    assert_eq!((again.identity(), again.attempts), (id, 1));
    nothing_works(h, old).await;
    assert_eq!(h.store.snooze(&[old], rest).await.unwrap(), [Answer::Lost]);
    assert_eq!(h.store.holds(&[old, again.fence()]).await.unwrap(), [false, true]);
    // The second lease is snoozed in its turn, and is as void as the first.
    assert_eq!(h.store.snooze(&[again.fence()], rest).await.unwrap(), [Answer::Done]);
    h.advance(1000);
    let third = h.take_one(&queue).await;
    assert_eq!((third.identity(), third.attempts), (id, 1));
    let late = h.store.complete(&[old, again.fence()]).await.unwrap();
    assert!(late.iter().all(|answer| matches!(answer, Answer::Lost | Answer::Unknown)), "{late:?}");
    assert_eq!(h.complete(third.fence()).await, Answer::Done);
}

pub async fn a_repeated_complete_says_so(h: &Harness) {
    let keep = Settings { retain_completed: Some(Duration::from_secs(60)), ..Settings::default() };
    let queue = h.queue_with(keep).await;
    h.put(&queue, "x").await;
    let fence = h.take_one(&queue).await.fence();
    assert_eq!(h.complete(fence).await, Answer::Done);
    assert_eq!(h.complete(fence).await, Answer::Already);
    assert_eq!(h.complete(Fence::exact(fence.id, 7)).await, Answer::Lost);
    assert_eq!(h.store.release(&[fence]).await.unwrap(), [Answer::Lost]);
    assert_eq!(h.store.archive_count(queue.id).await.unwrap(), (0, 1));
    // The same fence twice in one batch is done once.
    h.put(&queue, "y").await;
    let fence = h.take_one(&queue).await.fence();
    let answers = h.store.complete(&[fence, fence]).await.unwrap();
    assert_eq!(answers.iter().filter(|answer| **answer == Answer::Done).count(), 1, "{answers:?}");
    assert!(answers.iter().all(|answer| matches!(answer, Answer::Done | Answer::Already)), "{answers:?}");
    // A message that moved before it was completed is recognised by its last position.
    h.put(&queue, "z").await;
    let first = h.take_one(&queue).await.fence();
    h.store.retry(&[first], None, Place::Tail).await.unwrap();
    let second = h.take_one(&queue).await.fence();
    assert_eq!(h.complete(second).await, Answer::Done);
    assert_eq!(h.complete(second).await, Answer::Already);
}

pub async fn a_repeated_release_retry_and_bury_say_so(h: &Harness) {
    let queue = h.queue().await;
    h.store.enqueue(&queue, None, numbered(4)).await.unwrap();
    let fences: Vec<Fence> = h.take(&queue, 4).await.iter().map(Message::fence).collect();
    let soon = Some(Due::In(Duration::from_secs(1)));
    for expected in [Answer::Done, Answer::Already] {
        assert_eq!(h.store.release(&fences[..1]).await.unwrap(), [expected]);
        assert_eq!(h.store.retry(&fences[1..2], None, Place::Tail).await.unwrap(), [expected]);
        assert_eq!(h.store.retry(&fences[2..3], soon, Place::Tail).await.unwrap(), [expected]);
        assert_eq!(h.store.bury(&fences[3..], "because").await.unwrap(), [expected]);
    }
    assert_eq!(h.store.archive_count(queue.id).await.unwrap(), (1, 1));
    // Nothing leads from a message to its copy in a dead queue: a repeat changes nothing, but cannot be told why.
    h.store.queue_create("graves", Settings::default()).await.unwrap();
    let settings = Settings { dead_queue: Some("graves".into()), ..Settings::default() };
    let queue = h.store.queue_create("more", settings).await.unwrap();
    h.put(&queue, "x").await;
    let fence = h.take_one(&queue).await.fence();
    assert_eq!(h.store.bury(&[fence], "because").await.unwrap(), [Answer::Done]);
    assert_eq!(h.store.bury(&[fence], "because").await.unwrap(), [Answer::Unknown]);
}

pub async fn an_expired_but_untaken_lease_still_completes(h: &Harness) {
    let queue = h.queue().await;
    h.put(&queue, "x").await;
    let fence = h.take_one(&queue).await.fence();
    h.advance(31_000);
    assert_eq!(h.complete(fence).await, Answer::Done);
    assert!(h.take(&queue, 1).await.is_empty());
}

pub async fn a_released_lease_is_lost(h: &Harness) {
    let queue = h.queue().await;
    h.put(&queue, "x").await;
    let fence = h.take_one(&queue).await.fence();
    h.store.release(&[fence]).await.unwrap();
    assert_eq!(h.complete(fence).await, Answer::Lost);
    assert_eq!(h.store.extend(&[fence], Duration::from_secs(9)).await.unwrap(), [None]);
    assert_eq!(h.take_one(&queue).await.attempts, 2);
}

pub async fn an_id_alone_is_fenced_by_the_worker(h: &Harness) {
    let queue = h.queue().await;
    let [mine, theirs] = ["mine", "theirs"].map(|name| h.store.worker_register(name, None));
    let (mine, theirs) = (mine.await.unwrap().id, theirs.await.unwrap().id);
    h.store.enqueue(&queue, None, numbered(2)).await.unwrap();
    let claim = Claim { worker: Some(mine), ..Claim::from_queue(&queue, 2) };
    let taken = h.store.claim(claim).await.unwrap();
    assert_eq!(h.complete(Fence::held_by(taken[0].id, theirs)).await, Answer::Lost);
    assert_eq!(h.complete(Fence::held_by(taken[0].id, mine)).await, Answer::Done);
    assert_eq!(h.complete(Fence::any(taken[1].id)).await, Answer::Done);
}

pub async fn answers_come_in_the_order_of_the_questions(h: &Harness) {
    let queue = h.queue().await;
    h.store.enqueue(&queue, None, numbered(4)).await.unwrap();
    let taken = h.take(&queue, 4).await;
    h.store.release(&[taken[2].fence()]).await.unwrap();
    let asked = [taken[3].fence(), Fence::exact(424_242, 1), taken[2].fence(), taken[0].fence()];
    let answers = h.store.complete(&asked).await.unwrap();
    assert_eq!(answers, [Answer::Done, Answer::Unknown, Answer::Lost, Answer::Done]);
    let extended = h.store.extend(&[taken[0].fence(), taken[1].fence()], Duration::from_secs(1)).await.unwrap();
    assert_eq!(extended, [None, Some(START + 31_000_000)]);
}

pub async fn an_unknown_message_is_unknown(h: &Harness) {
    let queue = h.queue().await;
    let nobody = Fence::exact(12_345, 1);
    assert_eq!(h.complete(nobody).await, Answer::Unknown);
    assert_eq!(h.store.bury(&[nobody], "because").await.unwrap(), [Answer::Unknown]);
    // A queue that keeps nothing cannot tell a finished message from one that never was.
    h.put(&queue, "x").await;
    let fence = h.take_one(&queue).await.fence();
    assert_eq!(h.complete(fence).await, Answer::Done);
    assert_eq!(h.complete(fence).await, Answer::Unknown);
}
