use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::{Due, NewWork, Place, TurnClaim, WorkClaim, WorkFilter};

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

pub async fn a_message_handed_to_a_waiting_claim_is_leased_on_its_terms(h: &Harness) {
    let settings = Settings { expire: Some(Duration::from_secs(600)), ..Settings::default() };
    let queue = h.queue_with(settings).await;
    let worker = h.store.worker_register("w", None).await.unwrap().id;
    let claim = Claim { worker: Some(worker), lease: Some(Duration::from_secs(7)), ..patient(&queue, 3) };
    let task = waiting(h, claim).await;
    let message = NewMessage { kind: Some("k".into()), max_attempts: Some(2), ..NewMessage::new("x") };
    let enqueued = h.put_message(&queue, message).await;
    let handed = task.await.unwrap().remove(0);
    let stored = h.store.message_get(enqueued.id).await.unwrap().unwrap();
    assert_eq!(Message { keep: true, asked: None, ..handed.clone() }, stored, "what was handed over is what was stored");
    assert_eq!((handed.attempts, handed.worker), (1, Some(worker)));
    assert_eq!(handed.leased_until, enqueued.created_at + 7_000_000);
    h.advance(7_000);
    let second = h.take_one(&queue).await;
    assert_eq!((second.id, second.attempts), (handed.id, 2));
    assert_eq!(h.complete(handed.fence()).await, Answer::Lost);
    assert_eq!(h.complete(second.fence()).await, Answer::Done);
}

pub async fn a_message_enqueued_into_a_paused_queue_is_not_handed_to_a_waiting_claim(h: &Harness) {
    let queue = h.queue().await;
    h.store.queue_pause(&queue.name).await.unwrap();
    let mut task = waiting(h, patient(&queue, 1)).await;
    h.put(&queue, "x").await;
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut task).await.is_err());
    h.store.queue_resume(&queue.name).await.unwrap();
    assert_eq!(task.await.unwrap()[0].attempts, 1);
}

pub async fn a_message_is_not_handed_over_past_one_that_another_process_made_ready(h: &Harness) {
    let Some(other) = h.another().await else { return };
    let queue = h.queue().await;
    let task = waiting(h, patient(&queue, 2)).await;
    // Both are under way before this process can have heard of the first.
    other.enqueue(&queue, None, vec![NewMessage::new("first")]).await.unwrap();
    h.put(&queue, "second").await;
    let mut got = task.await.unwrap();
    if got.len() < 2 {
        got.extend(h.store.claim(patient(&queue, 1)).await.unwrap());
    }
    assert_eq!(payloads(&got), ["first", "second"]);
}

pub async fn messages_handed_one_by_one_are_delivered_once_each(h: &Harness) {
    let queue = h.queue_with(Settings { partitions: 2, ..Settings::default() }).await;
    let all_enqueued = Arc::new(AtomicBool::new(false));
    let consumers = (0..4).map(|_| {
        let (store, queue, all_enqueued) = (h.store.clone(), queue.clone(), all_enqueued.clone());
        tokio::spawn(async move {
            let mut got = Vec::new();
            loop {
                // Read before the claim: one that then finds nothing is the last.
                let last = all_enqueued.load(Ordering::SeqCst);
                let claim = Claim { wait: Duration::from_millis(300), ..Claim::from_queue(&queue, 2) };
                let messages = store.claim(claim).await.unwrap();
                if messages.is_empty() && last {
                    return got;
                }
                let fences: Vec<_> = messages.iter().map(Message::fence).collect();
                assert!(store.complete(&fences).await.unwrap().iter().all(|answer| *answer == Answer::Done));
                got.extend(messages);
            }
        })
    });
    let consumers: Vec<_> = consumers.collect();
    for n in 0..200 {
        h.put(&queue, &n.to_string()).await;
    }
    all_enqueued.store(true, Ordering::SeqCst);
    let mut got = Vec::new();
    for consumer in consumers {
        got.extend(consumer.await.unwrap());
    }
    assert!(got.iter().all(|message| message.attempts == 1));
    let mut numbers: Vec<usize> = payloads(&got).iter().map(|payload| payload.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..200).collect::<Vec<_>>());
}

pub async fn waiting_claims_share_fairly(h: &Harness) {
    let queue = h.queue().await;
    let mut rounds = Vec::new();
    // A claim that has not looked for messages yet does not share. A machine that stalls makes one late in some rounds.
    while rounds.len() < 5 {
        let mut tasks = Vec::new();
        for _ in 0..5 {
            tasks.push(waiting(h, patient(&queue, 10)).await);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        h.store.enqueue(&queue, None, numbered(10)).await.unwrap();
        let mut shares = Vec::new();
        for mut task in tasks {
            let taken = tokio::time::timeout(LONG / 5, &mut task).await;
            task.abort();
            shares.push(taken.map_or(0, |taken| taken.unwrap().len()));
        }
        if shares == [2; 5] {
            return;
        }
        rounds.push(shares);
        h.store.abandoned_released().await;
        h.take(&queue, 100).await;
    }
    panic!("{rounds:?}");
}

pub async fn a_message_is_not_lost_when_its_caller_goes_away(h: &Harness) {
    let queue = h.queue().await;
    let task = waiting(h, patient(&queue, 1)).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    h.put(&queue, "x").await;
    // It goes to somebody who is there, and the one who left is not counted.
    let taken = h.store.claim(patient(&queue, 1)).await.unwrap();
    assert_eq!((taken.len(), taken[0].attempts), (1, 1));
}

/// Runs a fetch and drops it a moment after there is something for it, or takes what it got in time.
async fn fetch_and_leave<T: Send + 'static>(
    n: u64,
    fetch: impl Future<Output = Option<T>> + Send + 'static,
    enqueue: impl Future<Output = ()>,
) -> Option<T> {
    let task = tokio::spawn(fetch);
    tokio::time::sleep(Duration::from_millis(n % 3)).await;
    enqueue.await;
    tokio::time::sleep(Duration::from_micros(n * 60)).await;
    task.abort();
    task.await.unwrap_or_default()
}

pub async fn what_was_leased_for_a_caller_that_went_away_is_released_uncounted(h: &Harness) {
    let queue = h.queue().await;
    let (lease, wait) = (Duration::from_secs(30), LONG);
    let turns = TurnClaim { lease, wait, pinned: None };
    let filter = WorkFilter { untagged: true, ..WorkFilter::default() };
    let work = WorkClaim { lease, wait, session: None, filter };
    for n in 0..40 {
        let (store, lanes) = (h.store.clone(), queue.lanes.clone());
        let fetch = async move { store.claim_key(&lanes, None, None, LONG).await.unwrap() };
        let message = NewMessage { key: Some(format!("key {n}")), ..NewMessage::new("x") };
        let left = fetch_and_leave(n, fetch, async { drop(h.put_message(&queue, message).await) }).await;
        let batch = match left {
            Some(batch) => batch,
            None => h.store.claim_key(&queue.lanes, None, None, LONG).await.unwrap().expect("the key is free again"),
        };
        assert_eq!((batch.key, batch.messages[0].attempts), (format!("key {n}"), 1));
        assert_eq!(h.store.key_complete(batch.token).await.unwrap(), Answer::Done);

        let (store, claim) = (h.store.clone(), turns.clone());
        let fetch = async move { store.turn_fetch(&claim, Vec::new).await.unwrap() };
        let send = h.store.turn_enqueue("i", "x".to_owned(), Duration::ZERO, n as i64 + 1);
        let turn = match fetch_and_leave(n, fetch, async { send.await.unwrap() }).await {
            Some(turn) => turn,
            None => h.store.turn_fetch(&turns, Vec::new).await.unwrap().expect("the turn is free again"),
        };
        assert_eq!(turn.messages[0].attempts, 1);
        h.store.turn_drop(&turn.token).await.unwrap();

        let (store, claim) = (h.store.clone(), work.clone());
        let fetch = async move { store.work_fetch(&claim).await.unwrap() };
        let new = NewWork { activity: None, session: None, tag: None, item: "x".to_owned() };
        let add = h.store.work_enqueue(new, n as i64 + 1);
        let taken = match fetch_and_leave(n, fetch, async { add.await.unwrap() }).await {
            Some(taken) => taken,
            None => h.store.work_fetch(&work).await.unwrap().expect("the activity is free again"),
        };
        assert_eq!(taken.attempts, 1);
        assert!(h.store.work_ack(taken.token, None, None).await.unwrap());
    }
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
    assert!(started.elapsed() < LONG / 2, "{:?}", started.elapsed());
}

pub async fn a_waiting_key_claim_gets_a_key_as_soon_as_one_is_free(h: &Harness) {
    let queue = h.queue().await;
    let keyed = |text: &str| NewMessage { key: Some("k".into()), ..NewMessage::new(text.to_owned()) };
    let wait = || {
        let (store, lanes) = (h.store.clone(), queue.lanes.clone());
        tokio::spawn(async move { store.claim_key(&lanes, None, None, LONG).await.unwrap().unwrap() })
    };
    let task = wait();
    tokio::time::sleep(Duration::from_millis(50)).await;
    h.put_message(&queue, keyed("1")).await;
    let first = task.await.unwrap();
    // The key is held: what comes now waits for it.
    h.put_message(&queue, keyed("2")).await;
    let task = wait();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(h.store.key_complete(first.token).await.unwrap(), Answer::Done);
    let second = task.await.unwrap();
    assert_eq!(payloads(&second.messages), ["2"]);
    // A caller that goes away leaves nothing held.
    assert_eq!(h.store.key_release(second.token, Duration::ZERO, None).await.unwrap(), Answer::Done);
    assert!(futures_util::FutureExt::now_or_never(h.store.claim_key(&queue.lanes, None, None, LONG)).is_none());
    let third = wait().await.unwrap();
    assert_eq!((payloads(&third.messages), third.messages[0].attempts), (vec!["2".to_owned()], 2));
}
