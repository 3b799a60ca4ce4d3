use super::*;
use crate::{Due, Place};

const LONG: Duration = Duration::from_secs(20);

fn patient(queue: &Queue, limit: usize) -> Claim {
    Claim { wait: LONG, ..Claim::from_queue(queue, limit) }
}

/// Starts a claim that waits, and sees to it that it does wait.
async fn waiting(h: &Harness, claim: Claim) -> tokio::task::JoinHandle<Vec<Message>> {
    let store = h.store.clone();
    let mut task = tokio::spawn(async move { store.claim(claim).await.unwrap() });
    let early = tokio::time::timeout(Duration::from_millis(50), &mut task).await;
    assert!(early.is_err(), "there was nothing to wait for");
    task
}

pub async fn a_waiting_claim_gets_a_message_as_soon_as_there_is_one(h: &Harness) {
    let queue = h.queue_with(Settings { partitions: 2, ..Settings::default() }).await;
    for partition in 0..2 {
        let task = waiting(h, patient(&queue, 5)).await;
        h.store.enqueue(&queue, Some(partition), numbered(1)).await.unwrap();
        assert_eq!(task.await.unwrap().len(), 1);
    }
}

pub async fn a_waiting_claim_ends_empty_when_its_time_is_over(h: &Harness) {
    let queue = h.queue().await;
    let claim = Claim { wait: Duration::from_millis(60), ..Claim::from_queue(&queue, 1) };
    let started = std::time::Instant::now();
    assert!(h.store.claim(claim).await.unwrap().is_empty());
    assert!(started.elapsed() >= Duration::from_millis(60));
}

pub async fn a_waiting_claim_is_woken_by_release_promotion_and_expiry(h: &Harness) {
    let queue = h.queue().await;
    h.put(&queue, "x").await;
    let first = h.take_one(&queue).await;
    let task = waiting(h, patient(&queue, 1)).await;
    h.store.release(&[first.fence()]).await.unwrap();
    let second = task.await.unwrap().remove(0);
    let task = waiting(h, patient(&queue, 1)).await;
    h.store.retry(&[second.fence()], Some(Due::In(Duration::from_secs(5))), Place::Tail).await.unwrap();
    h.advance(5_000);
    let third = task.await.unwrap().remove(0);
    let task = waiting(h, patient(&queue, 1)).await;
    h.advance(30_000);
    let fourth = task.await.unwrap().remove(0);
    assert_eq!((third.attempts, fourth.attempts, fourth.identity()), (3, 4, first.identity()));
}

pub async fn waiting_claims_share_fairly(h: &Harness) {
    let queue = h.queue().await;
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(waiting(h, patient(&queue, 10)).await);
    }
    h.store.enqueue(&queue, None, numbered(10)).await.unwrap();
    for task in tasks {
        assert_eq!(task.await.unwrap().len(), 2);
    }
}

pub async fn a_message_is_not_lost_when_its_claimer_goes_away(h: &Harness) {
    let queue = h.queue().await;
    let task = waiting(h, patient(&queue, 1)).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    h.put(&queue, "x").await;
    // It goes to somebody who is there, and the one who left is not counted.
    let taken = h.store.claim(patient(&queue, 1)).await.unwrap();
    assert_eq!((taken.len(), taken[0].attempts), (1, 1));
}

pub async fn another_process_wakes_a_waiting_claim(h: &Harness) {
    let Some(other) = h.another().await else { return };
    let queue = h.queue().await;
    // The fixed clock never lets the other process poll by itself: only a wake-up can end this wait in time.
    let task = waiting(h, patient(&queue, 1)).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let started = std::time::Instant::now();
    other.enqueue(&queue, None, numbered(1)).await.unwrap();
    assert_eq!(task.await.unwrap().len(), 1);
    assert!(started.elapsed() < Duration::from_millis(700), "{:?}", started.elapsed());
}
