//! A real runtime on both backends: session activities under a cap, and messages that arrive before their instance starts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[macro_use]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use duroxide::provider_validation::ProviderFactory as _;
use duroxide::providers::Provider;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{
    ActivityContext, Client, Event, EventKind, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus,
};

use crate::support::Factory;

cases! {
    sessions_over_the_cap_run_as_soon_as_capacity_is_free
    many_sessions_over_the_cap_keep_every_slot_busy
    a_cancellation_shortly_before_the_start_cancels_the_first_turn
    a_cancellation_shortly_before_a_childs_start_cancels_the_child
    messages_from_before_the_start_come_first_and_in_order
    waiting_for_the_start_uses_no_attempt
    a_start_right_after_a_dropped_message_is_not_delayed
    a_cancellation_before_the_start_wins_however_close_they_are
}

/// How long a session activity works.
const WORK: Duration = Duration::from_millis(200);

/// Starts a runtime with the orchestrations of all cases.
async fn run(provider: Arc<dyn Provider>, options: RuntimeOptions) -> Arc<Runtime> {
    let activities = ActivityRegistry::builder()
        .register("Work", |_: ActivityContext, input: String| async move {
            tokio::time::sleep(WORK).await;
            Ok(input)
        })
        .build();
    let orchestrations = OrchestrationRegistry::builder()
        .register("Session", |ctx: OrchestrationContext, input: String| async move {
            // The input is the number of activities and the session.
            let (count, session) = input.split_once(' ').unwrap();
            for _ in 0..count.parse::<u32>().unwrap() {
                ctx.schedule_activity_on_session("Work", "x", session).await?;
            }
            Ok("done".to_owned())
        })
        .register("Pause", |ctx: OrchestrationContext, _: String| async move {
            ctx.schedule_timer(Duration::from_millis(300)).await;
            Ok("completed".to_owned())
        })
        .register("Parent", |ctx: OrchestrationContext, _: String| async move {
            ctx.schedule_sub_orchestration_with_id("Pause", "child", "").await
        })
        .register("Queue", |ctx: OrchestrationContext, _: String| async move {
            let mut received = Vec::new();
            for _ in 0..3 {
                received.push(ctx.dequeue_event("queue").await);
            }
            Ok(received.join(" "))
        })
        .build();
    Runtime::start_with_options(provider, activities, orchestrations, options).await
}

/// The output of an instance, or why it failed.
async fn outcome(client: &Client, instance: &str) -> String {
    match client.wait_for_orchestration(instance, Duration::from_secs(60)).await.unwrap() {
        OrchestrationStatus::Completed { output, .. } => output,
        OrchestrationStatus::Failed { details, .. } => details.display_message(),
        other => panic!("{instance}: {other:?}"),
    }
}

/// Runs so many instances with so many session activities each, every instance in its own session. How long it took.
async fn run_sessions(provider: Arc<dyn Provider>, options: RuntimeOptions, instances: u32, each: u32) -> Duration {
    let runtime = run(provider.clone(), options).await;
    let client = Client::new(provider);
    let began = Instant::now();
    for n in 0..instances {
        client.start_orchestration(format!("i{n}"), "Session", format!("{each} s{n}")).await.unwrap();
    }
    for n in 0..instances {
        assert_eq!(outcome(&client, &format!("i{n}")).await, "done");
    }
    let took = began.elapsed();
    runtime.shutdown(None).await;
    took
}

/// How long the same load takes with as many workers as sessions of a cap, and with the cap, in runtimes of their own.
async fn without_and_with_cap(
    factory: &Factory,
    cap: usize,
    options: RuntimeOptions,
    load: (u32, u32),
) -> [Duration; 2] {
    let uncapped = RuntimeOptions { worker_concurrency: cap, max_sessions_per_runtime: 1000, ..options.clone() };
    let capped = RuntimeOptions { max_sessions_per_runtime: cap, ..options };
    let without = run_sessions(factory.create_provider().await, uncapped, load.0, load.1).await;
    [without, run_sessions(factory.create_provider().await, capped, load.0, load.1).await]
}

async fn sessions_over_the_cap_run_as_soon_as_capacity_is_free(factory: Factory) {
    let options = RuntimeOptions { worker_concurrency: 2, ..RuntimeOptions::default() };
    // Two activities of 200 ms, one after the other.
    let [without, with] = without_and_with_cap(&factory, 1, options, (2, 1)).await;
    // It took 31 s when a slot slept through a whole long poll.
    assert!(with < 3 * without + Duration::from_secs(12), "{with:?}, and {without:?} without a cap");
}

async fn many_sessions_over_the_cap_keep_every_slot_busy(factory: Factory) {
    let options = RuntimeOptions { worker_concurrency: 16, ..RuntimeOptions::default() };
    // 120 activities of 200 ms, ten at a time, need 2.4 s.
    let [without, with] = without_and_with_cap(&factory, 10, options, (40, 3)).await;
    assert!(with < 3 * without + Duration::from_secs(12), "{with:?}, and {without:?} without a cap");
}

async fn a_cancellation_shortly_before_the_start_cancels_the_first_turn(factory: Factory) {
    let provider = factory.create_provider().await;
    let runtime = run(provider.clone(), RuntimeOptions::default()).await;
    let client = Client::new(provider);
    client.cancel_instance("i", "changed my mind").await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    client.start_orchestration("i", "Pause", "").await.unwrap();
    let outcome = outcome(&client, "i").await;
    assert!(outcome.contains("changed my mind"), "{outcome}");
    runtime.shutdown(None).await;
}

async fn a_cancellation_shortly_before_a_childs_start_cancels_the_child(factory: Factory) {
    let provider = factory.create_provider().await;
    let runtime = run(provider.clone(), RuntimeOptions::default()).await;
    let client = Client::new(provider);
    client.cancel_instance("child", "changed my mind").await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    client.start_orchestration("parent", "Parent", "").await.unwrap();
    let outcome = outcome(&client, "parent").await;
    assert!(outcome.contains("changed my mind"), "{outcome}");
    runtime.shutdown(None).await;
}

async fn messages_from_before_the_start_come_first_and_in_order(factory: Factory) {
    let provider = factory.create_provider().await;
    let runtime = run(provider.clone(), RuntimeOptions::default()).await;
    let client = Client::new(provider);
    // duroxide drops queue messages that wait for a start alone, so they wait beside an event.
    client.raise_event("i", "event", "x").await.unwrap();
    for early in ["one", "two"] {
        client.enqueue_event("i", "queue", early).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    client.start_orchestration("i", "Queue", "").await.unwrap();
    client.enqueue_event("i", "queue", "three").await.unwrap();
    assert_eq!(outcome(&client, "i").await, "one two three");
    runtime.shutdown(None).await;
}

async fn waiting_for_the_start_uses_no_attempt(factory: Factory) {
    let provider = factory.create_provider().await;
    let options = RuntimeOptions { max_attempts: 1, ..RuntimeOptions::default() };
    let runtime = run(provider.clone(), options).await;
    let client = Client::new(provider.clone());
    client.raise_event("i", "event", "x").await.unwrap();
    // The runtime looks for the start at once and a second later.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    client.start_orchestration("i", "Pause", "").await.unwrap();
    assert_eq!(outcome(&client, "i").await, "completed");
    let history = provider.read("i").await.unwrap();
    let is_event = |event: &Event| matches!(event.kind, EventKind::ExternalEvent { .. });
    assert!(is_event(&history[1]), "the event is part of the first turn: {history:?}");
    runtime.shutdown(None).await;
}

async fn a_start_right_after_a_dropped_message_is_not_delayed(factory: Factory) {
    let provider = factory.create_provider().await;
    let runtime = run(provider.clone(), RuntimeOptions::default()).await;
    let client = Client::new(provider);
    let mut rounds = Vec::new();
    for n in 0..3 {
        let instance = format!("i{n}");
        // duroxide drops a queue message for an instance that was not started.
        client.enqueue_event(&instance, "queue", "x").await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let began = Instant::now();
        client.start_orchestration(&instance, "Session", format!("0 s{n}")).await.unwrap();
        assert_eq!(outcome(&client, &instance).await, "done");
        rounds.push(began.elapsed());
    }
    // The start was delayed in every round by the time after which the runtime looks for it again.
    assert!(rounds.iter().min().is_some_and(|least| *least < Duration::from_secs(1)), "{rounds:?}");
    runtime.shutdown(None).await;
}

async fn a_cancellation_before_the_start_wins_however_close_they_are(factory: Factory) {
    let (provider, other) = factory.create_pair().await;
    let runtimes =
        [run(provider.clone(), RuntimeOptions::default()).await, run(other.clone(), RuntimeOptions::default()).await];
    let mut starts = tokio::task::JoinSet::new();
    for n in 0..100u32 {
        let mut clients = [Client::new(provider.clone()), Client::new(other.clone())];
        if n % 2 == 0 {
            clients.reverse();
        }
        starts.spawn(async move {
            let [canceller, starter] = clients;
            let instance = format!("i{n}");
            tokio::time::sleep(Duration::from_millis(5) * n).await;
            canceller.cancel_instance(&instance, "changed my mind").await.unwrap();
            tokio::time::sleep(Duration::from_micros(100) * n).await;
            starter.start_orchestration(&instance, "Pause", "").await.unwrap();
            (outcome(&starter, &instance).await, instance)
        });
    }
    for (outcome, instance) in starts.join_all().await {
        assert!(outcome.contains("changed my mind"), "{instance}: {outcome}");
    }
    for runtime in runtimes {
        runtime.shutdown(None).await;
    }
}
