//! What both programs of this benchmark share: the scenarios, duroxide's own stress tests, and the line they print.
//!
//! Two programs, because duroxide's SQLite provider and ours link different SQLites and cannot share a lock file.

use std::sync::Arc;
use std::time::{Duration, Instant};

use duroxide::provider_stress_tests::large_payload::run_large_payload_test;
use duroxide::provider_stress_tests::parallel_orchestrations::ProviderStressFactory;
use duroxide::provider_stress_tests::{
    StressTestConfig, create_default_activities, create_default_orchestrations, run_stress_test,
};
use duroxide::providers::Provider;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus};

use crate::probe::Probe;

/// Letter, dispatchers of each kind, milliseconds of an activity, open instances.
const STRESS: [(&str, usize, u64, usize); 6] =
    [("A", 1, 10, 20), ("B", 2, 10, 20), ("C", 2, 0, 20), ("D", 4, 0, 20), ("S", 8, 0, 100), ("L", 2, 0, 1)];

struct Given(Arc<Probe>);

#[async_trait::async_trait]
impl ProviderStressFactory for Given {
    async fn create_provider(&self) -> Arc<dyn Provider> {
        self.0.clone()
    }
}

/// Runs a scenario and prints `rate success p50_ms p95_ms`: orchestrations a second, or what the scenario says.
pub(crate) async fn run(scenario: &str, provider: Arc<dyn Provider>, seconds: u64) {
    let (rate, success, p50, p95) = match scenario {
        "sequential" => (sequential(provider).await, 100.0, 0.0, 0.0),
        "idle" => (idle(provider, seconds).await, 100.0, 0.0, 0.0),
        _ => stress(scenario, provider, seconds).await,
    };
    println!("{rate} {success} {p50} {p95}");
}

async fn stress(scenario: &str, provider: Arc<dyn Provider>, seconds: u64) -> (f64, f64, f64, f64) {
    let probe = Arc::new(Probe::new(provider));
    let result = if scenario == "large" {
        run_large_payload_test(&Given(probe.clone())).await
    } else {
        let known = STRESS.iter().find(|(letter, ..)| *letter == scenario);
        let (_, dispatchers, delay, open) =
            known.expect("a scenario is one of A, B, C, D, S, L, large, sequential, idle");
        let config = StressTestConfig {
            max_concurrent: *open,
            duration_secs: seconds,
            tasks_per_instance: 5,
            activity_delay_ms: *delay,
            orch_concurrency: *dispatchers,
            worker_concurrency: *dispatchers,
            wait_timeout_secs: 60,
        };
        let activities = create_default_activities(*delay);
        run_stress_test(config, probe.clone(), activities, create_default_orchestrations()).await
    };
    let result = result.expect("the stress test runs");
    let latencies = probe.latencies();
    let at = |share: f64| latencies.get((latencies.len().saturating_sub(1) as f64 * share) as usize);
    let millis = |latency: Option<&Duration>| latency.map_or(0.0, |latency| latency.as_secs_f64() * 1000.0);
    (result.orch_throughput, result.success_rate(), millis(at(0.5)), millis(at(0.95)))
}

/// Milliseconds for each of a hundred activities, one after the other, in one instance.
async fn sequential(provider: Arc<dyn Provider>) -> f64 {
    let activities = ActivityRegistry::builder()
        .register("Step", |_: ActivityContext, input: String| async move { Ok(input) })
        .build();
    let orchestrations = OrchestrationRegistry::builder()
        .register("Steps", |ctx: OrchestrationContext, _: String| async move {
            for step in 0..100 {
                ctx.schedule_activity("Step", step.to_string()).await?;
            }
            Ok(String::new())
        })
        .build();
    let runtime = Runtime::start_with_store(provider.clone(), activities, orchestrations).await;
    let client = Client::new(provider);
    let mut best = f64::MAX;
    for round in 0..3 {
        let began = Instant::now();
        let instance = format!("steps-{round}");
        client.start_orchestration(&instance, "Steps", "").await.expect("it starts");
        let status = client.wait_for_orchestration(&instance, Duration::from_secs(120)).await.expect("it ends");
        assert!(matches!(status, OrchestrationStatus::Completed { .. }), "{status:?}");
        best = best.min(began.elapsed().as_secs_f64() * 10.0);
    }
    runtime.shutdown(None).await;
    best
}

/// An idle runtime; the caller counts what it asks of the database meanwhile.
async fn idle(provider: Arc<dyn Provider>, seconds: u64) -> f64 {
    let options = RuntimeOptions { orchestration_concurrency: 2, worker_concurrency: 2, ..RuntimeOptions::default() };
    let (activities, orchestrations) = (create_default_activities(0), create_default_orchestrations());
    let runtime = Runtime::start_with_options(provider, activities, orchestrations, options).await;
    // What a runtime asks when it starts is not idleness.
    tokio::time::sleep(Duration::from_secs(3)).await;
    println!("ready");
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    println!("over");
    runtime.shutdown(None).await;
    0.0
}
