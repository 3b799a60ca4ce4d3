use super::*;
use crate::{Due, Place, State};

pub async fn a_retry_keeps_its_place(h: &Harness) {
    let queue = h.queue().await;
    h.store.enqueue(&queue, None, numbered(3)).await.unwrap();
    let first = h.take_one(&queue).await;
    h.store.retry(&[first.fence()], None, Place::Keep).await.unwrap();
    let again = h.take(&queue, 9).await;
    assert_eq!(payloads(&again), ["0", "1", "2"]);
    assert_eq!((again[0].id, again[0].attempts), (first.id, 2));
}

pub async fn a_retry_to_the_tail_is_behind_the_others_and_keeps_its_identity(h: &Harness) {
    let queue = h.queue().await;
    let enqueued = h.store.enqueue(&queue, None, numbered(3)).await.unwrap();
    let first = h.take_one(&queue).await;
    h.store.retry(&[first.fence()], None, Place::Tail).await.unwrap();
    let again = h.take(&queue, 9).await;
    assert_eq!(payloads(&again), ["1", "2", "0"]);
    assert!(again[2].id > again[1].id);
    assert_eq!((again[2].identity(), again[2].attempts), (enqueued[0].id, 2));
    // And once more: the identity is still the first one.
    h.store.retry(&[again[2].fence()], None, Place::Tail).await.unwrap();
    assert_eq!(h.take_one(&queue).await.identity(), enqueued[0].id);
}

pub async fn a_delayed_retry_waits_and_goes_to_the_tail(h: &Harness) {
    let queue = h.queue().await;
    let enqueued = h.store.enqueue(&queue, None, numbered(2)).await.unwrap();
    let first = h.take_one(&queue).await;
    let due = Some(Due::In(Duration::from_secs(5)));
    assert_eq!(h.store.retry(&[first.fence()], due, Place::Tail).await.unwrap(), [Answer::Done]);
    let waiting = h.store.message_list(queue.lanes[0], State::Scheduled, 0, 9).await.unwrap();
    assert_eq!((waiting[0].id, waiting[0].due_at), (first.id, Some(START + 5_000_000)));
    h.put(&queue, "2").await;
    h.advance(4_999);
    assert_eq!(payloads(&h.take(&queue, 9).await), ["1", "2"]);
    h.advance(1);
    let again = h.take_one(&queue).await;
    assert_eq!((again.identity(), again.attempts), (enqueued[0].id, 2));
    let due = Some(Due::At(START + 60_000_000));
    h.store.retry(&[again.fence()], due, Place::Tail).await.unwrap();
    h.advance(54_999);
    assert!(h.take(&queue, 9).await.iter().all(|message| message.identity() != enqueued[0].id));
    h.advance(1);
    assert_eq!(h.take_one(&queue).await.attempts, 3);
}

pub async fn a_delayed_retry_can_keep_its_place(h: &Harness) {
    let queue = h.queue().await;
    h.store.enqueue(&queue, None, numbered(3)).await.unwrap();
    let first = h.take_one(&queue).await;
    let due = Some(Due::In(Duration::from_secs(5)));
    h.store.retry(&[first.fence()], due, Place::Keep).await.unwrap();
    assert_eq!(h.complete(first.fence()).await, Answer::Lost);
    h.advance(5_000);
    let again = h.take(&queue, 9).await;
    assert_eq!(payloads(&again), ["0", "1", "2"]);
    assert_eq!((again[0].id, again[0].attempts), (first.id, 2));
}

pub async fn a_postponed_message_that_keeps_its_place_is_found_there_by_another_process(h: &Harness) {
    let queue = h.queue().await;
    let other = h.another().await.unwrap_or_else(|| h.store.clone());
    let first = h.put(&queue, "first").await;
    let taken = h.take_one(&queue).await;
    h.store.retry(&[taken.fence()], Some(Due::In(Duration::from_secs(60))), Place::Keep).await.unwrap();
    // The other process looks often enough to believe that nothing is left below what it has taken.
    for n in 0..5 {
        h.put(&queue, &n.to_string()).await;
        h.advance(1_000);
        let fences: Vec<_> =
            other.claim(Claim::from_queue(&queue, 9)).await.unwrap().iter().map(Message::fence).collect();
        assert_eq!(other.complete(&fences).await.unwrap(), [Answer::Done]);
    }
    assert!(super::statements::floor(&other, queue.lanes[0]) <= first.id);
    h.advance(60_000);
    let found = other.claim(Claim::from_queue(&queue, 9)).await.unwrap();
    assert_eq!(found.iter().map(|message| message.id).collect::<Vec<_>>(), [first.id]);
}
