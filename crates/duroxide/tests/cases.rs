//! What duroxide's own suite does not look at, on both backends: texts that databases dislike, big payloads, backlogs,
//! wake-ups on time, messages for nobody, and what another process sees.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[macro_use]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use duroxide::OrchestrationStatus;
use duroxide::provider_validation::ProviderFactory as _;
use duroxide::providers::{ExecutionMetadata, Provider, SessionFetchConfig, TagFilter, WorkItem};
use duroxide::runtime::Runtime;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{ActivityContext, Client, Event, EventKind, OrchestrationContext, OrchestrationRegistry};

use crate::support::Factory;

const LEASE: Duration = Duration::from_secs(5);

cases! {
    hostile_texts_survive_and_stop_nobody
    a_payload_of_five_megabytes_survives
    a_hundred_thousand_delayed_rows_do_not_slow_a_fetch
    a_delayed_turn_and_a_delayed_activity_wake_a_waiting_fetch_on_time
    an_expired_lease_wakes_a_waiting_fetch_on_time
    a_lease_that_runs_out_right_after_a_look_is_met_on_time
    a_message_wakes_a_waiting_fetch_at_once
    a_cancellation_before_its_start_waits_for_it_and_stops_nobody
    an_uncounted_abandon_releases_only_a_session_that_its_fetch_claimed
    a_renewal_of_less_than_a_second_keeps_the_lease
    appended_events_are_read_and_duplicates_are_refused
    an_activity_that_nobody_comes_for_is_given_back_uncounted
}

fn start_item(instance: &str) -> WorkItem {
    WorkItem::StartOrchestration {
        instance: instance.to_owned(),
        orchestration: "Echo".to_owned(),
        input: String::new(),
        version: Some("1.0.0".to_owned()),
        parent_instance: None,
        parent_id: None,
        parent_execution_id: None,
        execution_id: 1,
    }
}

fn activity(instance: &str, id: u64) -> WorkItem {
    WorkItem::ActivityExecute {
        instance: instance.to_owned(),
        execution_id: 1,
        id,
        name: "Echo".to_owned(),
        input: String::new(),
        session_id: None,
        tag: None,
    }
}

async fn fetch_work(provider: &Arc<dyn Provider>, lease: Duration, wait: Duration) -> Option<(WorkItem, String, u32)> {
    provider.fetch_work_item(lease, wait, None, &TagFilter::DefaultOnly).await.unwrap()
}

/// A runtime whose orchestration hands its input through an activity, keeps it as a value and as its status, and returns it.
async fn echo(provider: Arc<dyn Provider>) -> Arc<Runtime> {
    let activities = ActivityRegistry::builder()
        .register("Echo", |_: ActivityContext, input: String| async move { Ok(input) })
        .build();
    let orchestrations = OrchestrationRegistry::builder()
        .register("Echo", |ctx: OrchestrationContext, input: String| async move {
            if input.len() < 1000 {
                ctx.set_kv_value("k\0ey", &input);
                ctx.set_custom_status(&input);
            }
            ctx.schedule_activity("Echo", input).await
        })
        .build();
    Runtime::start_with_store(provider, activities, orchestrations).await
}

async fn completes(client: &Client, instance: &str, expected: &str) {
    match client.wait_for_orchestration(instance, Duration::from_secs(30)).await.unwrap() {
        OrchestrationStatus::Completed { output, .. } => {
            assert!(output == expected, "{instance} returned another text");
        }
        other => panic!("{instance}: {other:?}"),
    }
}

async fn hostile_texts_survive_and_stop_nobody(factory: Factory) {
    let provider = factory.create_provider().await;
    let runtime = echo(provider.clone()).await;
    let client = Client::new(provider.clone());
    let texts =
        ["\0", "a\0b", r"\u0000", r"\ud800", "\u{1}0", "\u{fffd}\u{10ffff}", "'; drop table history; --", "\"{}"];
    for (n, text) in texts.iter().enumerate() {
        client.start_orchestration(&format!("i{n}"), "Echo", *text).await.unwrap();
    }
    client.start_orchestration("plain", "Echo", "plain").await.unwrap();
    for (n, text) in texts.iter().enumerate() {
        let instance = format!("i{n}");
        completes(&client, &instance, text).await;
        assert_eq!(provider.get_kv_value(&instance, "k\0ey").await.unwrap().as_deref(), Some(*text));
        assert_eq!(provider.get_custom_status(&instance, 0).await.unwrap().unwrap().0.as_deref(), Some(*text));
        let admin = provider.as_management_capability().unwrap();
        assert_eq!(admin.get_instance_info(&instance).await.unwrap().output.as_deref(), Some(*text));
    }
    completes(&client, "plain", "plain").await;
    runtime.shutdown(None).await;
}

async fn a_payload_of_five_megabytes_survives(factory: Factory) {
    let provider = factory.create_provider().await;
    let runtime = echo(provider.clone()).await;
    let client = Client::new(provider);
    let big: String = (0..5 << 20).map(|n: u32| char::from(b'a' + u8::try_from(n % 23).unwrap())).collect();
    client.start_orchestration("big", "Echo", &big).await.unwrap();
    client.start_orchestration("small", "Echo", "small").await.unwrap();
    completes(&client, "small", "small").await;
    completes(&client, "big", &big).await;
    runtime.shutdown(None).await;
}

/// The median of what a fetch takes, of a turn and of an activity.
async fn median_fetch(provider: &Arc<dyn Provider>) -> (Duration, Duration) {
    let (mut turns, mut work) = (Vec::new(), Vec::new());
    for _ in 0..101 {
        let began = Instant::now();
        let (_, token, _) = provider.fetch_orchestration_item(LEASE, Duration::ZERO, None).await.unwrap().unwrap();
        turns.push(began.elapsed());
        provider.abandon_orchestration_item(&token, None, true).await.unwrap();
        let began = Instant::now();
        let (_, token, _) = fetch_work(provider, LEASE, Duration::ZERO).await.unwrap();
        work.push(began.elapsed());
        provider.abandon_work_item(&token, None, true).await.unwrap();
    }
    turns.sort_unstable();
    work.sort_unstable();
    (turns[50], work[50])
}

async fn a_hundred_thousand_delayed_rows_do_not_slow_a_fetch(factory: Factory) {
    let (empty, full) = (factory.create_provider().await, factory.create_provider().await);
    for provider in [&empty, &full] {
        provider.enqueue_for_orchestrator(start_item("now"), None).await.unwrap();
        provider.enqueue_for_worker(activity("now", 1)).await.unwrap();
    }
    // Into the database made last.
    factory.delay_rows(100_000).await;
    let (mut turns, mut work) = (f64::INFINITY, f64::INFINITY);
    // One after the other, because a machine that is busy for a while slows both. Reading all rows is slow in every round.
    for _ in 0..10 {
        let (without, with) = (median_fetch(&empty).await, median_fetch(&full).await);
        turns = turns.min(with.0.as_secs_f64() / without.0.as_secs_f64());
        work = work.min(with.1.as_secs_f64() / without.1.as_secs_f64());
        if turns <= 1.5 && work <= 1.5 {
            return;
        }
    }
    panic!("with the rows, a turn takes {turns:.2} times as long, an activity {work:.2} times");
}

/// How long after `due` something comes that must not come before it.
fn late(began: Instant, due: Duration) -> Duration {
    let took = began.elapsed();
    assert!(took + Duration::from_millis(5) >= due, "came after {took:?}");
    took.saturating_sub(due)
}

/// Asserts that a fetch is woken on time in one of five rounds: a machine that stalls is not late in all. Each round has a
/// database of its own and returns how late its last fetch was.
async fn on_time_in_one_round(factory: &Factory, round: impl AsyncFn(Arc<dyn Provider>) -> Duration) {
    let mut lates = Vec::new();
    for _ in 0..5 {
        let provider = factory.create_provider().await;
        provider.enqueue_for_orchestrator(start_item("i"), None).await.unwrap();
        provider.enqueue_for_worker(activity("i", 1)).await.unwrap();
        let late = round(provider).await;
        if late < Duration::from_millis(400) {
            return;
        }
        lates.push(late);
    }
    panic!("late in every round: {lates:?}");
}

async fn a_delayed_turn_and_a_delayed_activity_wake_a_waiting_fetch_on_time(factory: Factory) {
    let delay = Duration::from_millis(700);
    on_time_in_one_round(&factory, async |provider| {
        let (_, token, _) = provider.fetch_orchestration_item(LEASE, Duration::ZERO, None).await.unwrap().unwrap();
        let (_, work, _) = fetch_work(&provider, LEASE, Duration::ZERO).await.unwrap();
        let began = Instant::now();
        provider.abandon_orchestration_item(&token, Some(delay), false).await.unwrap();
        provider.abandon_work_item(&work, Some(delay), false).await.unwrap();
        let (turn, work) = tokio::join!(
            async {
                let turn = provider.fetch_orchestration_item(LEASE, Duration::from_secs(10), None).await;
                (turn.unwrap().unwrap(), late(began, delay))
            },
            async { (fetch_work(&provider, LEASE, Duration::from_secs(10)).await.unwrap(), late(began, delay)) }
        );
        assert_eq!((turn.0.2, work.0.2), (2, 2));
        turn.1.max(work.1)
    })
    .await;
}

async fn an_expired_lease_wakes_a_waiting_fetch_on_time(factory: Factory) {
    let lease = Duration::from_secs(1);
    on_time_in_one_round(&factory, async |provider| {
        let began = Instant::now();
        provider.fetch_orchestration_item(lease, Duration::ZERO, None).await.unwrap().unwrap();
        fetch_work(&provider, lease, Duration::ZERO).await.unwrap();
        let turn = provider.fetch_orchestration_item(LEASE, Duration::from_secs(10), None).await.unwrap().unwrap();
        let turn_late = late(began, lease);
        let work = fetch_work(&provider, LEASE, Duration::from_secs(10)).await.unwrap();
        assert_eq!((turn.2, work.2), (2, 2));
        turn_late.max(late(began, lease))
    })
    .await;
}

async fn a_lease_that_runs_out_right_after_a_look_is_met_on_time(factory: Factory) {
    let lease = Duration::from_millis(600);
    on_time_in_one_round(&factory, async |provider| {
        let began = Instant::now();
        let turn = provider.fetch_orchestration_item(lease, Duration::ZERO, None);
        let work = fetch_work(&provider, lease, Duration::ZERO);
        let (turn, work) = tokio::join!(turn, work);
        assert!(turn.unwrap().is_some() && work.is_some());
        // The first look comes just before the end, the question what will come just after it.
        tokio::time::sleep((began + lease - Duration::from_millis(5)).saturating_duration_since(Instant::now())).await;
        let (turn, work) = tokio::join!(
            async {
                provider.fetch_orchestration_item(LEASE, Duration::from_secs(10), None).await.unwrap().unwrap();
                late(began, lease)
            },
            async {
                fetch_work(&provider, LEASE, Duration::from_secs(10)).await.unwrap();
                late(began, lease)
            }
        );
        turn.max(work)
    })
    .await;
}

async fn a_message_wakes_a_waiting_fetch_at_once(factory: Factory) {
    let (provider, other) = factory.create_pair().await;
    for sender in [&provider, &other] {
        let mut rounds = Vec::new();
        while rounds.iter().all(|took| *took >= Duration::from_millis(500)) {
            assert!(rounds.len() < 5, "picked up after {rounds:?}");
            rounds.push(picked_up_after(&provider, sender).await);
        }
    }
}

/// How long it takes until a fetch that waits has what another provider sends.
async fn picked_up_after(provider: &Arc<dyn Provider>, sender: &Arc<dyn Provider>) -> Duration {
    let waiting = provider.clone();
    let fetch = tokio::spawn(async move {
        let (_, token, _) =
            waiting.fetch_orchestration_item(LEASE, Duration::from_secs(10), None).await.unwrap().unwrap();
        let at = Instant::now();
        let metadata = ExecutionMetadata::default();
        waiting.ack_orchestration_item(&token, 1, vec![], vec![], vec![], metadata, vec![]).await.unwrap();
        at
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let sent = Instant::now();
    sender.enqueue_for_orchestrator(start_item("i"), None).await.unwrap();
    fetch.await.unwrap().saturating_duration_since(sent)
}

async fn a_cancellation_before_its_start_waits_for_it_and_stops_nobody(factory: Factory) {
    let provider = factory.create_provider().await;
    let cancel = WorkItem::CancelInstance { instance: "late".to_owned(), reason: "changed my mind".to_owned() };
    provider.enqueue_for_orchestrator(cancel.clone(), None).await.unwrap();
    provider.enqueue_for_orchestrator(start_item("other"), None).await.unwrap();
    let (item, ..) = provider.fetch_orchestration_item(LEASE, Duration::ZERO, None).await.unwrap().unwrap();
    assert_eq!(item.instance, "other");
    provider.enqueue_for_orchestrator(start_item("late"), None).await.unwrap();
    for attempt in 1..=2 {
        let (item, token, attempts) =
            provider.fetch_orchestration_item(LEASE, Duration::ZERO, None).await.unwrap().unwrap();
        assert_eq!((item.instance.as_str(), item.orchestration_name.as_str()), ("late", "Echo"));
        assert_eq!((item.messages, attempts), (vec![cancel.clone(), start_item("late")], attempt));
        provider.abandon_orchestration_item(&token, None, false).await.unwrap();
    }
}

fn session_activity(id: u64, session: &str) -> WorkItem {
    match activity("i", id) {
        WorkItem::ActivityExecute { instance, execution_id, id, name, input, tag, .. } => WorkItem::ActivityExecute {
            instance,
            execution_id,
            id,
            name,
            input,
            session_id: Some(session.to_owned()),
            tag,
        },
        other => other,
    }
}

async fn fetch_session(provider: &Arc<dyn Provider>, owner: &str) -> Option<(WorkItem, String, u32)> {
    let session = SessionFetchConfig { owner_id: owner.to_owned(), lock_timeout: LEASE };
    provider.fetch_work_item(LEASE, Duration::ZERO, Some(&session), &TagFilter::DefaultOnly).await.unwrap()
}

async fn an_uncounted_abandon_releases_only_a_session_that_its_fetch_claimed(factory: Factory) {
    let provider = factory.create_provider().await;
    provider.enqueue_for_worker(session_activity(1, "s")).await.unwrap();
    provider.enqueue_for_worker(session_activity(2, "s")).await.unwrap();
    let (_, token, _) = fetch_session(&provider, "a").await.unwrap();
    provider.abandon_work_item(&token, None, true).await.unwrap();
    let (item, token, attempts) = fetch_session(&provider, "b").await.expect("the session is free");
    assert_eq!((item, attempts), (session_activity(1, "s"), 1));
    provider.ack_work_item(&token, None).await.unwrap();
    let (_, token, _) = fetch_session(&provider, "b").await.unwrap();
    provider.abandon_work_item(&token, None, true).await.unwrap();
    assert!(fetch_session(&provider, "a").await.is_none(), "the owner held the session from its earlier activity");
    let (_, token, _) = fetch_session(&provider, "b").await.unwrap();
    provider.abandon_work_item(&token, None, false).await.unwrap();
    assert!(fetch_session(&provider, "a").await.is_none(), "an abandon that counts keeps the session");
}

async fn a_renewal_of_less_than_a_second_keeps_the_lease(factory: Factory) {
    let mut ended = Err(String::new());
    // A machine that stalls for 900 ms may lose a lease of that length, and not five.
    for _ in 0..5 {
        let provider = factory.create_provider().await;
        provider.enqueue_for_worker(activity("i", 1)).await.unwrap();
        let (_, token, _) = fetch_work(&provider, LEASE, Duration::ZERO).await.unwrap();
        provider.renew_work_item_lock(&token, Duration::from_millis(900)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        ended = provider.ack_work_item(&token, None).await.map_err(|error| error.to_string());
        if ended.is_ok() {
            break;
        }
    }
    ended.unwrap();
}

async fn appended_events_are_read_and_duplicates_are_refused(factory: Factory) {
    let provider = factory.create_provider().await;
    let event = |id| Event::with_event_id(id, "i", 1, None, EventKind::ActivityCompleted { result: "x".to_owned() });
    provider.append_with_execution("i", 1, vec![event(1), event(2)]).await.unwrap();
    let error = provider.append_with_execution("i", 1, vec![event(3), event(2)]).await.unwrap_err();
    assert!(!error.is_retryable(), "{error}");
    assert_eq!(provider.read("i").await.unwrap().len(), 2);
}

async fn an_activity_that_nobody_comes_for_is_given_back_uncounted(factory: Factory) {
    let provider = factory.create_provider().await;
    for id in 1..=2 {
        provider.enqueue_for_worker(activity("i", id)).await.unwrap();
    }
    // The second one is leased in the commit that ends the first; then its worker goes away.
    let (_, token, _) = fetch_work(&provider, LEASE, Duration::ZERO).await.unwrap();
    provider.ack_work_item(&token, None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    // A second attempt would come when the lease has expired.
    let (item, _, attempts) = fetch_work(&provider, LEASE, Duration::from_secs(10)).await.unwrap();
    assert_eq!((item, attempts), (activity("i", 2), 1));
}
