use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::{Consumer, Delivery, EnqueueOptions, Error, MessageQueue, Outcome, Producer, RetryPolicy, Settings};
use tokio::sync::Notify;

use super::Harness;

const FAST: RetryPolicy =
    RetryPolicy { first: Duration::from_millis(100), factor: 2.0, max: Duration::from_secs(1), jitter: 0.0 };

/// What handlers have seen, and a bell for when it is enough.
#[derive(Default)]
struct Log {
    seen: Mutex<Vec<(String, i32, Instant)>>,
    bell: Notify,
}

impl Log {
    fn note(&self, delivery: &Delivery) -> usize {
        let text = String::from_utf8_lossy(delivery.payload.as_bytes()).trim_matches('"').to_owned();
        let mut seen = self.seen.lock().unwrap();
        seen.push((text, delivery.read_ct, Instant::now()));
        self.bell.notify_waiters();
        seen.len()
    }

    fn texts(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|(text, ..)| text.clone()).collect()
    }

    /// Waits until so many deliveries were noted, and a moment for what they did with them.
    async fn until(&self, count: usize) {
        let enough = async {
            loop {
                let bell = self.bell.notified();
                if self.seen.lock().unwrap().len() >= count {
                    return;
                }
                tokio::select! { () = bell => {} () = tokio::time::sleep(Duration::from_millis(50)) => {} }
            }
        };
        tokio::time::timeout(Duration::from_secs(300), enough).await.expect("the messages arrive");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

pub(crate) async fn every_message_is_handled_once(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.batch_enqueue(&(0..300).collect::<Vec<_>>()).await.unwrap();
    let log = Arc::new(Log::default());
    let (working, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let noted = log.clone();
    let (now, high) = (working.clone(), most.clone());
    let handle = move |delivery: Delivery| {
        let (log, now, high) = (noted.clone(), now.clone(), high.clone());
        async move {
            high.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(2)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            log.note(&delivery);
            Ok::<_, Error>(())
        }
    };
    let late = async {
        log.until(300).await;
        producer.enqueue(&300).await.unwrap();
        log.until(301).await;
    };
    let summary = consumer.run(handle).concurrency(8).until(late).await.unwrap();
    assert_eq!((summary.completed, summary.retried, summary.lost), (301, 0, 0));
    let mut texts: Vec<u32> = log.texts().iter().map(|text| text.parse().unwrap()).collect();
    texts.sort_unstable();
    assert_eq!(texts, (0..=300).collect::<Vec<_>>());
    assert!(most.load(Ordering::SeqCst) <= 8);
    assert_eq!(h.admin().get_queue_metrics("jobs").await.unwrap().total_messages, 0);
}

pub(crate) async fn outcomes_decide_what_becomes_of_a_message(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.batch_enqueue(&["complete", "retry", "bury"]).await.unwrap();
    let log = Arc::new(Log::default());
    let noted = log.clone();
    let handle = move |delivery: Delivery| {
        noted.note(&delivery);
        async move {
            Ok::<_, Error>(match (delivery.json::<String>()?.as_str(), delivery.read_ct) {
                ("retry", 1) => Outcome::RetryAfter(Duration::from_millis(300)),
                ("bury", _) => Outcome::Bury("it is spam".into()),
                _ => Outcome::Complete,
            })
        }
    };
    let summary = consumer.run(handle).until(log.until(4)).await.unwrap();
    assert_eq!((summary.completed, summary.retried, summary.buried), (2, 1, 1));
    let seen = log.seen.lock().unwrap().clone();
    let retries: Vec<_> = seen.iter().filter(|(text, ..)| text == "retry").collect();
    assert!(retries[1].2 - retries[0].2 >= Duration::from_millis(300));
    let dead = h.admin().list_dead("jobs", 9).await.unwrap();
    assert_eq!(dead[0].reason.as_deref(), Some("it is spam"));
}

pub(crate) async fn an_error_is_retried_after_a_rest_and_does_not_end_the_loop(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.enqueue("flaky").await.unwrap();
    let log = Arc::new(Log::default());
    let noted = log.clone();
    let handle = move |delivery: Delivery| {
        noted.note(&delivery);
        async move { if delivery.read_ct < 4 { Err("not yet") } else { Ok(()) } }
    };
    let summary = consumer.run(handle).retry(FAST).until(log.until(4)).await.unwrap();
    assert_eq!((summary.completed, summary.retried), (1, 3));
    let seen = log.seen.lock().unwrap().clone();
    let rests: Vec<_> = seen.windows(2).map(|pair| pair[1].2 - pair[0].2).collect();
    for (rest, least) in rests.iter().zip([100, 200, 400]) {
        assert!(*rest >= Duration::from_millis(least - 5), "{rests:?}");
    }
    assert_eq!(seen.iter().map(|(_, attempt, _)| *attempt).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

pub(crate) async fn the_last_failure_is_the_reason_of_death_and_panics_are_failures(h: &Harness) {
    let settings = Settings { max_attempts: Some(2), ..Settings::default() };
    h.admin().create_queue_with("jobs", settings).await.unwrap();
    let (producer, consumer) = (h.producer().await, h.consumer(1).await);
    producer.batch_enqueue(&["error", "panic"]).await.unwrap();
    let log = Arc::new(Log::default());
    let noted = log.clone();
    let handle = move |delivery: Delivery| {
        noted.note(&delivery);
        async move {
            assert!(delivery.json::<String>().unwrap() != "panic", "out of cheese");
            Err::<(), _>("the printer is on fire")
        }
    };
    let summary = consumer.run(handle).retry(FAST).until(log.until(4)).await.unwrap();
    assert_eq!((summary.retried, summary.buried, summary.completed), (2, 2, 0));
    let reasons: HashMap<String, String> = h
        .admin()
        .list_dead("jobs", 9)
        .await
        .unwrap()
        .into_iter()
        .map(|dead| (dead.payload.to().unwrap(), dead.reason.unwrap()))
        .collect();
    assert_eq!(reasons["error"], "failed in attempt 2, the last one: the printer is on fire");
    assert!(reasons["panic"].contains("the handler panicked") && reasons["panic"].contains("out of cheese"));
}

pub(crate) async fn a_lease_is_kept_while_its_handler_works(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let other = h.consumer(2).await;
    let mut rounds = Vec::new();
    // A machine that stalls for two seconds, a quarter of the lease, loses it in one round, and not in all.
    while rounds.len() < 4 {
        producer.enqueue("slow").await.unwrap();
        let (log, told) = (Arc::new(Log::default()), Arc::new(AtomicBool::new(false)));
        let (noted, flag) = (log.clone(), told.clone());
        let handle = move |delivery: Delivery| {
            let (log, told) = (noted.clone(), flag.clone());
            async move {
                tokio::time::sleep(Duration::from_secs(10)).await;
                told.fetch_or(delivery.lease_lost().is_cancelled(), Ordering::SeqCst);
                log.note(&delivery);
                Ok::<_, Error>(())
            }
        };
        let stolen = async { other.dequeue_within(Duration::from_secs(9), 1, 30).await.unwrap() };
        let run = consumer.run(handle).lease(Duration::from_secs(8)).until(log.until(1));
        let (summary, stolen) = tokio::join!(async { run.await.unwrap() }, stolen);
        let told = told.load(Ordering::SeqCst);
        if (stolen.len(), summary.completed, summary.lost, told) == (0, 1, 0, false) {
            return;
        }
        rounds.push((stolen.len(), summary, told));
        h.admin().purge_queue("jobs").await.unwrap();
    }
    panic!("another consumer got it, or its handler was told that it is lost: {rounds:?}");
}

pub(crate) async fn a_handler_whose_lease_is_lost_is_told(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.enqueue("x").await.unwrap();
    let (told, log) = (Arc::new(AtomicBool::new(false)), Arc::new(Log::default()));
    let (flag, noted) = (told.clone(), log.clone());
    let handle = move |delivery: Delivery| {
        let (told, log) = (flag.clone(), noted.clone());
        async move {
            log.note(&delivery);
            let lost = delivery.lease_lost().cancelled();
            told.store(tokio::time::timeout(Duration::from_secs(20), lost).await.is_ok(), Ordering::SeqCst);
            log.note(&delivery);
            Err::<(), _>("not done")
        }
    };
    let stop = async {
        log.until(1).await;
        // An operator takes it away.
        assert_eq!(h.admin().purge_queue("jobs").await.unwrap(), 1);
        log.until(2).await;
    };
    let summary = consumer.run(handle).lease(Duration::from_secs(8)).until(stop).await.unwrap();
    assert!(told.load(Ordering::SeqCst));
    assert_eq!((summary.completed, summary.lost), (0, 1));
}

pub(crate) async fn a_stop_waits_for_handlers_within_the_grace(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.batch_enqueue(&(0..20).collect::<Vec<_>>()).await.unwrap();
    let log = Arc::new(Log::default());
    let noted = log.clone();
    let handle = move |delivery: Delivery| {
        noted.note(&delivery);
        async move {
            tokio::time::sleep(Duration::from_millis(600)).await;
            Ok::<_, Error>(())
        }
    };
    let first = async {
        while log.texts().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let summary = consumer.run(handle).concurrency(4).until(first).await.unwrap();
    // Those that had begun are finished; the others are free, and nobody counted a delivery that never was.
    assert!((1..=8).contains(&summary.completed), "{summary:?}");
    let rest = h.consumer(2).await.dequeue().await.unwrap();
    assert_eq!(rest.len() as u64, 20 - summary.completed);
    assert!(rest.iter().all(|message| message.read_ct == 1), "{rest:?}");
}

pub(crate) async fn a_stop_gives_back_what_does_not_finish_in_time(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let mut rounds = Vec::new();
    // The loop waits five seconds for its releases: a machine that stalls for longer leaves messages leased in one round, and not
    // in all.
    while let Err(wrong) = given_back_by_a_stop(h, &producer, &consumer).await {
        rounds.push(wrong);
        assert!(rounds.len() < 4, "{rounds:?}");
        h.admin().purge_queue("jobs").await.unwrap();
    }
}

/// Stops a loop whose two handlers do not end. What it did, when it did not give both messages back.
async fn given_back_by_a_stop(h: &Harness, producer: &Producer, consumer: &Consumer) -> Result<(), String> {
    producer.batch_enqueue(&[1, 2]).await.unwrap();
    let (told, log) = (Arc::new(AtomicBool::new(false)), Arc::new(Log::default()));
    let (flag, noted) = (told.clone(), log.clone());
    let handle = move |delivery: Delivery| {
        noted.note(&delivery);
        let told = flag.clone();
        async move {
            match delivery.json::<u32>()? {
                // One listens to its token, the other never comes back.
                1 => delivery.lease_lost().cancelled().await,
                _ => std::future::pending().await,
            }
            told.store(true, Ordering::SeqCst);
            Ok::<_, Error>(Outcome::RetryAfter(Duration::from_millis(1)))
        }
    };
    let run = consumer.run(handle).until(log.until(2)).grace(Duration::from_millis(300));
    let summary = tokio::time::timeout(Duration::from_secs(120), run.into_future()).await.unwrap().unwrap();
    // The first one is released too when its answer comes too late.
    assert_eq!(summary.completed, 0, "{summary:?}");
    assert!(summary.retried == 0 || told.load(Ordering::SeqCst), "{summary:?}");
    if summary.retried + summary.released != 2 {
        return Err(format!("{summary:?}"));
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let back = h.consumer(2).await.dequeue_within(Duration::from_secs(3), 9, 30).await.unwrap();
    assert!(!back.is_empty() && back.iter().all(|message| message.read_ct == 2), "{back:?}");
    Ok(())
}

pub(crate) async fn messages_of_a_key_are_handled_in_order_and_one_at_a_time(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    for n in 0..30 {
        let options = EnqueueOptions::default().key(format!("k{}", n % 3));
        producer.enqueue_with_options(&format!("{}-{:02}", n % 3, n / 3), &options).await.unwrap();
    }
    producer.enqueue("plain").await.unwrap();
    let log = Arc::new(Log::default());
    let busy = Arc::new(Mutex::new(HashMap::<String, u32>::new()));
    let noted = log.clone();
    let handle = move |delivery: Delivery| {
        let (log, busy) = (noted.clone(), busy.clone());
        async move {
            let key = delivery.key.clone().unwrap_or_default();
            let mine = {
                let mut busy = busy.lock().unwrap();
                *busy.entry(key.clone()).and_modify(|count| *count += 1).or_insert(1)
            };
            assert_eq!(mine, 1, "one at a time");
            tokio::time::sleep(Duration::from_millis(3)).await;
            *busy.lock().unwrap().get_mut(&key).unwrap() -= 1;
            log.note(&delivery);
            Ok::<_, Error>(())
        }
    };
    let summary = consumer.run(handle).until(log.until(31)).await.unwrap();
    assert_eq!((summary.completed, summary.retried), (31, 0));
    for key in 0..3 {
        let of_key: Vec<_> = log.texts().into_iter().filter(|text| text.starts_with(&format!("{key}-"))).collect();
        assert!(of_key.len() == 10 && of_key.is_sorted(), "{of_key:?}");
    }
}

pub(crate) async fn a_failed_message_holds_back_the_rest_of_its_key(h: &Harness) {
    let (_, consumer) = h.queue().await;
    let queue = MessageQueue::on(&h.store);
    for text in ["1", "2", "3"] {
        queue.enqueue("jobs", "k", text, None).await.unwrap();
    }
    let log = Arc::new(Log::default());
    let noted = log.clone();
    let handle = move |delivery: Delivery| {
        noted.note(&delivery);
        async move {
            let fails = delivery.payload.as_bytes() == b"2" && delivery.read_ct == 1;
            if fails { Err("not yet") } else { Ok(()) }
        }
    };
    let summary = consumer.run(handle).retry(FAST).until(log.until(4)).await.unwrap();
    assert_eq!(log.texts(), ["1", "2", "2", "3"], "3 does not overtake 2");
    assert_eq!((summary.completed, summary.retried), (3, 1));
}

pub(crate) async fn a_busy_worker_is_not_declared_dead(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.enqueue("long").await.unwrap();
    let log = Arc::new(Log::default());
    let noted = log.clone();
    let handle = move |delivery: Delivery| {
        let log = noted.clone();
        async move {
            // Longer than the worker may be silent. A heartbeat is sent every second.
            tokio::time::sleep(Duration::from_secs(12)).await;
            log.note(&delivery);
            Ok::<_, Error>(())
        }
    };
    let inspect = async {
        let silent = Duration::from_secs(10);
        tokio::time::sleep(Duration::from_secs(11)).await;
        let purged = h.admin().purge_stale_workers(silent).await.unwrap();
        assert_eq!((purged.worker_ids, purged.messages_released), (vec![], 0));
        assert_eq!(h.admin().release_zombie_messages(silent).await.unwrap(), 0);
    };
    let run = consumer.run(handle).until(log.until(1));
    let (summary, ()) = tokio::join!(async { run.await.unwrap() }, inspect);
    assert_eq!(summary.completed, 1);
}

pub(crate) async fn a_worker_that_was_replaced_stops_its_loop(h: &Harness) {
    let (_, mut consumer) = h.queue().await;
    let handle = |_: Delivery| async { Ok::<_, Error>(()) };
    let mut rounds = Vec::new();
    // A machine that stalls ends the loop late in one round, and not in all.
    while rounds.last().is_none_or(|late| *late >= Duration::from_secs(8)) {
        assert!(rounds.len() < 4, "{rounds:?}");
        let replace = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            (h.consumer(1).await, Instant::now())
        };
        let run = async { (consumer.run(handle).await, Instant::now()) };
        let both = async { tokio::join!(run, replace) };
        let both = tokio::time::timeout(Duration::from_secs(120), both).await;
        let ((ended, at), (reborn, replaced)) = both.expect("the loop ends");
        assert!(matches!(ended.unwrap_err(), Error::WorkerStopped { .. }));
        rounds.push(at.saturating_duration_since(replaced));
        consumer = reborn;
    }
}

pub(crate) async fn bad_settings_are_refused(h: &Harness) {
    let (_, consumer) = h.queue().await;
    let handle = |_: Delivery| async { Ok::<_, Error>(()) };
    assert!(matches!(consumer.run(handle).concurrency(0).await.unwrap_err(), Error::ValidationFailed { .. }));
    let short = consumer.run(handle).lease(Duration::from_millis(1));
    assert!(matches!(short.await.unwrap_err(), Error::ValidationFailed { .. }));
}
