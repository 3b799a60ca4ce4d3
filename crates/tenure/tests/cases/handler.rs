//! What a handler may answer, how long it may take, and what it is told: with the real clock.

use std::future::IntoFuture as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::{
    Admin, Consumer, Delivery, EnqueueOptions, Error, MessageQueue, Outcome, Producer, RetryPolicy, Settings, Summary,
};
use tokio::sync::{Notify, Semaphore, oneshot};

use super::Harness;

const FAST: RetryPolicy =
    RetryPolicy { first: Duration::from_millis(50), factor: 1.0, max: Duration::from_secs(1), jitter: 0.0 };

/// Payload and attempt of every delivery, in order.
type Seen = Arc<Mutex<Vec<(String, i32)>>>;

fn note(seen: &Seen, delivery: &Delivery) -> usize {
    let mut seen = seen.lock().unwrap();
    seen.push((delivery.json().unwrap(), delivery.read_ct));
    seen.len()
}

/// Ends when no message is left in the queue; fails after 300 s.
async fn drained(admin: Admin) {
    let drain = async {
        while admin.get_queue_metrics("jobs").await.unwrap().total_messages > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(300), drain).await.expect("no message is left within 300 s");
}

pub(crate) async fn a_snoozed_message_uses_no_attempt(h: &Harness) {
    let settings = Settings { max_attempts: Some(2), ..Settings::default() };
    h.admin().create_queue_with("jobs", settings).await.unwrap();
    let (producer, consumer) = (h.producer().await, h.consumer(1).await);
    producer.enqueue("plain").await.unwrap();
    for text in ["first", "second"] {
        producer.enqueue_with_options(text, &EnqueueOptions::default().key("ada")).await.unwrap();
    }
    let seen = Seen::default();
    let noted = seen.clone();
    let handle = move |delivery: Delivery| {
        note(&noted, &delivery);
        let (text, noted) = (delivery.json::<String>().unwrap(), noted.clone());
        async move {
            let calls = noted.lock().unwrap().iter().filter(|(seen, _)| *seen == text).count();
            let early = text != "second" && calls < 4;
            Ok::<_, Error>(if early { Outcome::Snooze(Duration::from_millis(50)) } else { Outcome::Complete })
        }
    };
    let summary = consumer.run(handle).until(drained(h.admin())).await.unwrap();
    assert_eq!((summary.completed, summary.snoozed, summary.retried, summary.buried), (3, 6, 0, 0));
    let seen = seen.lock().unwrap();
    assert!(seen.iter().all(|(_, attempt)| *attempt == 1), "{seen:?}");
    let keyed: Vec<&str> = seen.iter().map(|(text, _)| text.as_str()).filter(|text| *text != "plain").collect();
    assert_eq!(keyed, ["first", "first", "first", "first", "second"]);
}

pub(crate) async fn a_retry_after_the_last_attempt_is_buried(h: &Harness) {
    let settings = Settings { max_attempts: Some(2), ..Settings::default() };
    h.admin().create_queue_with("jobs", settings).await.unwrap();
    let (producer, consumer) = (h.producer().await, h.consumer(1).await);
    producer.enqueue("plain").await.unwrap();
    producer.enqueue_with_options("keyed", &EnqueueOptions::default().key("ada")).await.unwrap();
    let handle = |_: Delivery| async { Ok::<_, Error>(Outcome::RetryAfter(Duration::from_millis(20))) };
    let summary = consumer.run(handle).until(drained(h.admin())).await.unwrap();
    assert_eq!((summary.retried, summary.buried, summary.completed), (2, 2, 0));
    let reasons = h.admin().list_dead("jobs", 9).await.unwrap().into_iter().map(|dead| dead.reason.unwrap());
    let expected = "failed in attempt 2, the last one: the handler wants a retry after 20ms";
    assert_eq!(reasons.collect::<Vec<_>>(), [expected, expected]);
}

pub(crate) async fn a_running_loop_sees_changed_attempts(h: &Harness) {
    let settings = Settings { max_attempts: Some(2), ..Settings::default() };
    h.admin().create_queue_with("jobs", settings).await.unwrap();
    let (producer, consumer) = (h.producer().await, h.consumer(1).await);
    producer.enqueue("flaky").await.unwrap();
    let (seen, admin) = (Seen::default(), h.admin());
    let noted = seen.clone();
    let handle = move |delivery: Delivery| {
        let (calls, admin) = (note(&noted, &delivery), admin.clone());
        async move {
            if calls == 2 {
                admin.change_queue("jobs", |settings| settings.max_attempts = Some(4)).await.unwrap();
            }
            Err::<(), _>("not yet")
        }
    };
    let summary = consumer.run(handle).retry(FAST).until(drained(h.admin())).await.unwrap();
    assert_eq!((summary.retried, summary.buried), (3, 1));
    assert_eq!(seen.lock().unwrap().len(), 4);
}

pub(crate) async fn a_loop_leases_for_as_long_as_the_queue_says(h: &Harness) {
    h.admin()
        .create_queue_with("jobs", Settings { lease: Duration::from_secs(7), ..Settings::default() })
        .await
        .unwrap();
    let (producer, consumer) = (h.producer().await, h.consumer(1).await);
    producer.enqueue(&7).await.unwrap();
    let (admin, again) = (h.admin(), h.producer().await);
    let leases = Arc::new(Mutex::new(Vec::new()));
    let noted = leases.clone();
    let again = Arc::new(again);
    let handle = move |delivery: Delivery| {
        noted.lock().unwrap().push((delivery.vt - delivery.dequeued_at.unwrap()).num_seconds());
        let (admin, again) = (admin.clone(), again.clone());
        async move {
            if delivery.json::<i64>().unwrap() == 7 {
                admin.change_queue("jobs", |settings| settings.lease = Duration::from_secs(3)).await.unwrap();
                again.enqueue(&3).await.unwrap();
            }
            Ok::<_, Error>(())
        }
    };
    consumer.run(handle).concurrency(1).until(drained(h.admin())).await.unwrap();
    assert_eq!(*leases.lock().unwrap(), [7, 3]);
    let handle = |_: Delivery| async { Ok::<_, Error>(()) };
    let error = consumer.run(handle).lease(Duration::from_millis(99)).await.unwrap_err();
    assert!(error.to_string().contains("shorter than 100 ms"), "{error}");
}

/// For how many seconds a loop leases a message, and one of a key.
async fn leased_for(h: &Harness, consumer: &Consumer, lease: Option<Duration>) -> [i64; 2] {
    let producer = h.producer().await;
    producer.enqueue("plain").await.unwrap();
    producer.enqueue_with_options("keyed", &EnqueueOptions::default().key("ada")).await.unwrap();
    let leases = Arc::new(Mutex::new([0, 0]));
    let noted = leases.clone();
    let handle = move |delivery: Delivery| {
        let seconds = (delivery.vt - delivery.dequeued_at.unwrap()).num_seconds();
        noted.lock().unwrap()[usize::from(delivery.key.is_some())] = seconds;
        async { Ok::<_, Error>(()) }
    };
    let mut run = consumer.run(handle).until(drained(h.admin()));
    if let Some(lease) = lease {
        run = run.lease(lease);
    }
    run.await.unwrap();
    *leases.lock().unwrap()
}

pub(crate) async fn a_lease_of_the_loop_overrides_that_of_the_queue(h: &Harness) {
    let settings = Settings { lease: Duration::from_secs(7), ..Settings::default() };
    h.admin().create_queue_with("jobs", settings).await.unwrap();
    let consumer = h.consumer(1).await;
    assert_eq!(leased_for(h, &consumer, None).await, [7, 7]);
    assert_eq!(leased_for(h, &consumer, Some(Duration::from_secs(90))).await, [90, 90]);
    h.admin().change_queue("jobs", |settings| settings.lease = Duration::from_millis(50)).await.unwrap();
    assert_eq!(leased_for(h, &consumer, Some(Duration::from_secs(90))).await, [90, 90]);
}

pub(crate) async fn a_loop_checks_the_lease_that_its_queue_has_now(h: &Harness) {
    let settings = Settings { lease: Duration::from_millis(50), ..Settings::default() };
    h.admin().create_queue_with("jobs", settings).await.unwrap();
    let consumer = h.consumer(1).await;
    let handle = |_: Delivery| async { Ok::<_, Error>(()) };
    let refused = consumer.run(handle).until(std::future::pending::<()>()).into_future();
    let error = tokio::time::timeout(Duration::from_secs(60), refused).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::ValidationFailed { .. }) && error.to_string().contains("'jobs'"), "{error:?}");
    h.admin().change_queue("jobs", |settings| settings.lease = Duration::from_secs(7)).await.unwrap();
    assert_eq!(leased_for(h, &consumer, None).await, [7, 7]);
    h.admin().change_queue("jobs", |settings| settings.lease = Duration::from_millis(99)).await.unwrap();
    let refused = consumer.run(handle).until(std::future::pending::<()>()).into_future();
    let error = tokio::time::timeout(Duration::from_secs(60), refused).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("shorter than 100 ms"), "{error}");
    // A loop that was told to stop before it began has done nothing.
    assert_eq!(consumer.run(handle).until(std::future::ready(())).await.unwrap(), Summary::default());
}

pub(crate) async fn a_handler_that_hangs_fails_at_its_time_limit(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.enqueue("hangs once").await.unwrap();
    let seen = Seen::default();
    let (noted, told) = (seen.clone(), Arc::new(Notify::new()));
    let tell = told.clone();
    let handle = move |delivery: Delivery| {
        let (calls, tell) = (note(&noted, &delivery), tell.clone());
        async move {
            if calls == 1 {
                let elsewhere = delivery.lease_lost().clone();
                tokio::spawn(async move {
                    elsewhere.cancelled().await;
                    tell.notify_one();
                });
                std::future::pending::<()>().await;
            }
            Ok::<_, Error>(())
        }
    };
    let done = drained(h.admin());
    let limit = Duration::from_millis(200);
    let summary = consumer.run(handle).time_limit(limit).retry(FAST).until(done).await.unwrap();
    assert_eq!((summary.completed, summary.retried, summary.lost), (1, 1, 0));
    tokio::time::timeout(Duration::from_secs(20), told.notified()).await.expect("what the handler started is told");
    let handle = |_: Delivery| async { Ok::<_, Error>(()) };
    let error = consumer.run(handle).time_limit(Duration::ZERO).await.unwrap_err();
    assert!(error.to_string().contains("time limit"), "{error}");
}

pub(crate) async fn without_prefetch_a_busy_loop_leaves_messages_to_others(h: &Harness) {
    let (producer, busy) = h.queue().await;
    let (started, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (start, wait) = (started.clone(), release.clone());
    let handle = move |_: Delivery| {
        let (start, wait) = (start.clone(), wait.clone());
        async move {
            start.notify_one();
            wait.notified().await;
            Ok::<_, Error>(())
        }
    };
    let other = h.consumer(2).await;
    let test = async {
        producer.enqueue("long").await.unwrap();
        started.notified().await;
        producer.batch_enqueue(&["a", "b"]).await.unwrap();
        producer.enqueue_with_options("keyed", &EnqueueOptions::default().key("ada")).await.unwrap();
        // A busy loop with prefetch has leased them by then. Without it, a claim that was under way gives them back.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let counts = async {
            loop {
                let metrics = h.admin().get_queue_metrics("jobs").await.unwrap();
                if (metrics.locked_messages, metrics.pending_messages) == (1, 3) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), counts).await.expect("the busy loop leases one message");
        let taken = other.dequeue_within(Duration::from_secs(5), 9, 60).await.unwrap();
        assert_eq!(taken.len(), 2);
        assert!(taken.iter().all(|message| message.read_ct == 1));
        other.delete_batch(&taken).await.unwrap();
        release.notify_one();
        // The key is left, and this loop has room again.
        started.notified().await;
        release.notify_one();
        drained(h.admin()).await;
    };
    let summary = busy.run(handle).concurrency(1).prefetch(0).until(test).await.unwrap();
    assert_eq!((summary.completed, summary.lost), (2, 0));
}

pub(crate) async fn without_prefetch_messages_and_keys_take_turns(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.batch_enqueue(&["plain"; 40]).await.unwrap();
    for key in 0..8 {
        let options = EnqueueOptions::default().key(format!("key {key}"));
        producer.batch_enqueue_with_options(&["keyed"; 2], &options).await.unwrap();
    }
    let seen = Seen::default();
    let noted = seen.clone();
    let handle = move |delivery: Delivery| {
        note(&noted, &delivery);
        async { Ok::<_, Error>(()) }
    };
    let done = drained(h.admin());
    let summary = consumer.run(handle).concurrency(1).prefetch(0).until(done).await.unwrap();
    assert_eq!((summary.completed, summary.lost), (56, 0));
    let seen = seen.lock().unwrap();
    assert!(seen.iter().all(|(_, attempt)| *attempt == 1), "{seen:?}");
    let last_key = seen.iter().rposition(|(text, _)| text == "keyed").unwrap();
    let plain_before = seen[..last_key].iter().filter(|(text, _)| text == "plain").count();
    assert!(plain_before < 40, "the keys had to wait until all other messages were done");
}

pub(crate) async fn a_handler_learns_within_a_second_that_its_message_was_deleted(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let working = Arc::new(Semaphore::new(0));
    let told = Arc::new(Mutex::new(Vec::new()));
    let (count, note_told) = (working.clone(), told.clone());
    let handle = move |delivery: Delivery| {
        let (count, told) = (count.clone(), note_told.clone());
        async move {
            if delivery.json::<String>().unwrap() == "behind" {
                return Ok(());
            }
            count.add_permits(1);
            tokio::time::timeout(Duration::from_secs(60), delivery.lease_lost().cancelled()).await.unwrap();
            told.lock().unwrap().push(Instant::now());
            Err("deleted")
        }
    };
    let rounds = Mutex::new(Vec::new());
    let test = async {
        // A machine that stalls is late once or twice, and not always.
        for _ in 0..5 {
            let late = told_after_a_deletion(h, &producer, &working, &told).await;
            assert!(late < Duration::from_secs(8), "told after {late:?}");
            rounds.lock().unwrap().push(late);
            if late < Duration::from_secs(1) {
                return;
            }
        }
    };
    let summary = consumer.run(handle).until(test).await.unwrap();
    let rounds = rounds.into_inner().unwrap();
    assert!(rounds.last().is_some_and(|late| *late < Duration::from_secs(1)), "told after {rounds:?}");
    let count = rounds.len() as u64;
    assert_eq!((summary.completed, summary.lost, summary.retried), (count, 2 * count, 0));
    assert_eq!(told.lock().unwrap().len(), 2 * rounds.len());
}

/// Deletes a message and one of a key while their handlers work. How long it takes until both handlers are told.
async fn told_after_a_deletion(
    h: &Harness,
    producer: &Producer,
    working: &Semaphore,
    told: &Mutex<Vec<Instant>>,
) -> Duration {
    let before = told.lock().unwrap().len();
    let of_key = EnqueueOptions::default().key("ada");
    let plain = producer.enqueue("plain").await.unwrap();
    let keyed = producer.enqueue_with_options("keyed", &of_key).await.unwrap();
    producer.enqueue_with_options("behind", &of_key).await.unwrap();
    working.acquire_many(2).await.unwrap().forget();
    for id in [plain.id, keyed.id] {
        assert!(h.store.messages().delete(id).await.unwrap());
    }
    let deleted = Instant::now();
    while told.lock().unwrap().len() < before + 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drained(h.admin()).await;
    let last = told.lock().unwrap()[before + 1];
    last.saturating_duration_since(deleted)
}

pub(crate) async fn a_loop_stops_with_any_future_and_reports_its_error(h: &Harness) {
    let (_, consumer) = h.queue().await;
    let handle = |_: Delivery| async { Ok::<_, Error>(()) };
    let (stop, stopped) = oneshot::channel::<()>();
    stop.send(()).unwrap();
    consumer.run(handle).until(stopped).await.unwrap();
    let broken = async { Err::<(), _>(std::io::Error::other("no signals here")) };
    let error = consumer.run(handle).until(broken).await.unwrap_err();
    assert!(error.to_string().contains("no signals here"), "{error}");
    let with_a_signal = consumer.run(handle).until(tokio::signal::ctrl_c());
    drop(with_a_signal);
}

pub(crate) async fn a_rest_longer_than_a_database_can_hold_is_shortened(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.batch_enqueue(&["snooze", "retry", "fail"]).await.unwrap();
    for text in ["snooze", "retry", "fail"] {
        producer.enqueue_with_options(text, &EnqueueOptions::default().key(text)).await.unwrap();
    }
    let seen = Seen::default();
    let noted = seen.clone();
    let handle = move |delivery: Delivery| {
        note(&noted, &delivery);
        async move {
            match delivery.json::<String>().unwrap().as_str() {
                "snooze" => Ok(Outcome::Snooze(Duration::MAX)),
                "retry" => Ok(Outcome::RetryAfter(Duration::MAX)),
                "fail" => Err("much later"),
                _ => Ok(Outcome::Complete),
            }
        }
    };
    let (noted, late) = (seen.clone(), &producer);
    let test = async move {
        let reach = async |count| {
            while noted.lock().unwrap().len() < count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        reach(6).await;
        // The lane still hands out keys.
        late.enqueue_with_options("another", &EnqueueOptions::default().key("another")).await.unwrap();
        reach(7).await;
    };
    let test = tokio::time::timeout(Duration::from_secs(20), test);
    let never = RetryPolicy { first: Duration::MAX, max: Duration::MAX, jitter: 0.0, ..RetryPolicy::default() };
    let summary = consumer.run(handle).retry(never).until(test).await.unwrap();
    assert_eq!((summary.snoozed, summary.retried, summary.completed, summary.lost), (2, 4, 1, 0));
    let metrics = h.admin().get_queue_metrics("jobs").await.unwrap();
    assert_eq!((metrics.total_messages, metrics.locked_messages), (6, 0));
}

pub(crate) async fn a_message_completed_by_hand_in_its_handler_counts_as_completed(h: &Harness) {
    let kept = Settings { retain_completed: Some(Duration::from_secs(600)), ..Settings::default() };
    for (name, settings) in [("jobs", Settings::default()), ("kept", kept)] {
        h.admin().create_queue_with(name, settings).await.unwrap();
        let producer = Producer::on(&h.store, name, "host", 1).await.unwrap();
        let consumer = Consumer::on(&h.store, name, "host", 2).await.unwrap();
        producer.batch_enqueue(&["at once", "long"]).await.unwrap();
        for text in ["at once", "long"] {
            producer.enqueue_with_options(text, &EnqueueOptions::default().key("ada")).await.unwrap();
        }
        let own = consumer.clone();
        let ended = Arc::new(Semaphore::new(0));
        let end = ended.clone();
        let handle = move |delivery: Delivery| {
            let (own, end) = (own.clone(), end.clone());
            async move {
                assert!(own.complete(&*delivery).await.unwrap());
                if delivery.json::<String>().unwrap() == "long" {
                    // Longer than the loop takes to notice that a message is gone.
                    tokio::time::sleep(Duration::from_millis(1200)).await;
                }
                end.add_permits(1);
                Ok::<_, Error>(())
            }
        };
        let all = async { ended.acquire_many(4).await.unwrap().forget() };
        let summary = consumer.run(handle).until(all).await.unwrap();
        assert_eq!((summary.completed, summary.lost, summary.retried), (4, 0, 0), "{name}");
    }
}

/// An error whose text cannot be had, and a future that cannot be dropped.
struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("this error cannot be displayed")
    }
}

struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("this handler cannot be dropped")
    }
}

pub(crate) async fn a_panic_beside_the_handler_is_a_failure(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.batch_enqueue(&["display", "drop"]).await.unwrap();
    let handle = |delivery: Delivery| async move {
        match (delivery.json::<String>().unwrap().as_str(), delivery.read_ct) {
            ("display", 1) => Err(Broken),
            ("drop", 1) => {
                let _broken = PanicsOnDrop;
                std::future::pending().await
            }
            _ => Ok(()),
        }
    };
    let limit = Duration::from_millis(200);
    let run = consumer.run(handle).retry(FAST).time_limit(limit).until(drained(h.admin()));
    let summary = run.await.unwrap();
    assert_eq!((summary.completed, summary.retried, summary.lost), (2, 2, 0));
}

pub(crate) async fn a_full_loop_gives_back_what_a_claim_brings_beyond_its_bound(h: &Harness) {
    let (producer, busy) = h.queue().await;
    let (started, release) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let (start, wait) = (started.clone(), release.clone());
    let handle = move |_: Delivery| {
        let (start, wait) = (start.clone(), wait.clone());
        async move {
            start.notify_one();
            wait.acquire().await.unwrap().forget();
            Ok::<_, Error>(())
        }
    };
    let other = h.consumer(2).await;
    let test = async {
        // The claim for plain messages is under way, with room for two.
        tokio::time::sleep(Duration::from_millis(200)).await;
        producer.enqueue_with_options("a", &EnqueueOptions::default().key("a")).await.unwrap();
        started.notified().await;
        producer.enqueue_with_options("b", &EnqueueOptions::default().key("b")).await.unwrap();
        while h.admin().get_queue_metrics("jobs").await.unwrap().locked_messages < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        producer.batch_enqueue(&["c", "d"]).await.unwrap();
        let mut taken = Vec::new();
        for _ in 0..2 {
            taken.extend(other.dequeue_within(Duration::from_secs(5), 2 - taken.len(), 60).await.unwrap());
        }
        assert_eq!(taken.len(), 2, "the busy loop has kept messages beyond its bound");
        assert!(taken.iter().all(|message| message.read_ct == 1));
        other.delete_batch(&taken).await.unwrap();
        release.add_permits(2);
        drained(h.admin()).await;
    };
    let summary = busy.run(handle).concurrency(1).prefetch(1).until(test).await.unwrap();
    assert_eq!((summary.completed, summary.lost), (2, 0));
    // Without any bound.
    producer.enqueue("x").await.unwrap();
    let handle = |_: Delivery| async { Ok::<_, Error>(()) };
    let run = busy.run(handle).concurrency(usize::MAX).prefetch(usize::MAX).until(drained(h.admin()));
    assert_eq!(run.await.unwrap().completed, 1);
}

pub(crate) async fn a_message_that_was_freed_under_its_handler_is_not_counted_as_completed(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let other = h.consumer(2).await;
    for options in [EnqueueOptions::default(), EnqueueOptions::default().key("ada")] {
        let id = producer.enqueue_with_options("x", &options).await.unwrap().id;
        let (started, told, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::new(Notify::new()));
        let signals = (started.clone(), told.clone(), release.clone());
        let handle = move |delivery: Delivery| {
            let (started, told, release) = signals.clone();
            async move {
                started.notify_one();
                delivery.lease_lost().cancelled().await;
                told.notify_one();
                release.notified().await;
                Ok::<_, Error>(())
            }
        };
        let test = async {
            started.notified().await;
            // A worker is silent for a moment between two heartbeats.
            while h.store.release_zombie_messages(Duration::from_millis(1)).await.unwrap() == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other_finishes(h, &other, id, &told).await;
            release.notify_one();
        };
        let run = consumer.run(handle).concurrency(1).prefetch(0).until(test).into_future();
        let summary = tokio::time::timeout(Duration::from_secs(60), run).await.unwrap().unwrap();
        assert_eq!((summary.completed, summary.lost), (0, 1), "{options:?}");
    }
}

/// Another consumer is given the message, and completes it after the first handler was told.
async fn other_finishes(h: &Harness, other: &Consumer, id: i64, told: &Notify) {
    let routed = MessageQueue::on(&h.store);
    let wait = Duration::from_millis(100);
    loop {
        if let Some(taken) = other.dequeue_within(wait, 1, 60).await.unwrap().first() {
            assert_eq!(taken.id, id);
            told.notified().await;
            assert!(other.delete(taken).await.unwrap());
            return;
        }
        if let Some(batch) = routed.dequeue_batch_within("jobs", wait).await.unwrap() {
            assert_eq!(batch.messages[0].id, id);
            told.notified().await;
            return routed.ack(&batch.lock_token).await.unwrap();
        }
    }
}

pub(crate) async fn a_loop_goes_on_with_a_queue_that_was_created_anew(h: &Harness) {
    // A machine that stalls between a deletion and the creation ends the loop in one round, and not in all.
    for _ in 0..20 {
        match run_while_a_queue_is_created_anew(h).await {
            Ok(summary) => {
                assert_eq!((summary.completed, summary.lost), (4, 0));
                return;
            }
            Err(error) => assert!(matches!(error, Error::QueueNotFound { .. }), "{error:?}"),
        }
    }
    panic!("the loop ended in every round");
}

async fn run_while_a_queue_is_created_anew(h: &Harness) -> tenure::Result<Summary> {
    h.admin().get_or_create_queue("jobs").await.unwrap();
    h.admin().purge_queue("jobs").await.unwrap();
    let consumer = h.consumer(1).await;
    let queues = Arc::new(Mutex::new(Vec::new()));
    let noted = queues.clone();
    let handle = move |delivery: Delivery| {
        noted.lock().unwrap().push(delivery.queue_id);
        async { Ok::<_, Error>(()) }
    };
    let recreate = async {
        let mut expected = Vec::new();
        for _ in 0..2 {
            // The loop waits in the queue that is there now.
            tokio::time::sleep(Duration::from_millis(200)).await;
            h.kernel.queue_delete("jobs").await.unwrap();
            let id = h.admin().create_queue("jobs").await.unwrap().id;
            let producer = h.producer().await;
            producer.enqueue("plain").await.unwrap();
            producer.enqueue_with_options("keyed", &EnqueueOptions::default().key("k")).await.unwrap();
            expected.extend([id, id]);
            drained(h.admin()).await;
        }
        assert_eq!(*queues.lock().unwrap(), expected);
    };
    consumer.run(handle).until(recreate).await
}

pub(crate) async fn a_loop_ends_when_its_queue_is_deleted(h: &Harness) {
    let (_, consumer) = h.queue().await;
    let handle = |_: Delivery| async { Ok::<_, Error>(()) };
    let delete = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        h.kernel.queue_delete("jobs").await.unwrap();
    };
    let run = tokio::time::timeout(Duration::from_secs(20), consumer.run(handle).into_future());
    let (ended, ()) = tokio::join!(run, delete);
    let error = ended.expect("the loop ends").unwrap_err();
    assert!(matches!(&error, Error::QueueNotFound { name } if name == "jobs"), "{error:?}");
}
