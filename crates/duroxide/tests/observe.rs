//! What the provider tells `metrics`: every operation, by name, failures by kind, and never a payload, an id or a DSN.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::Provider as _;
use duroxide::runtime::Runtime;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tenure_duroxide::TenureProvider;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_is_measured_and_nothing_secret_is_told() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let dsn = format!("sqlite:{}", folder.path().join("hidden.db").display());
    let provider = Arc::new(TenureProvider::new(&dsn).await.unwrap());
    let activities = ActivityRegistry::builder()
        .register("Echo", |_: ActivityContext, input: String| async move { Ok(input) })
        .build();
    let orchestrations = OrchestrationRegistry::builder()
        .register("Echo", |ctx: OrchestrationContext, input: String| async move {
            ctx.schedule_activity("Echo", input).await
        })
        .build();
    let runtime = Runtime::start_with_store(provider.clone(), activities, orchestrations).await;
    let client = Client::new(provider.clone());
    client.start_orchestration("confidential", "Echo", "confidential").await.unwrap();
    client.wait_for_orchestration("confidential", Duration::from_secs(10)).await.unwrap();
    runtime.shutdown(None).await;
    let lost = "1.confidential";
    provider.ack_orchestration_item(lost, 1, vec![], vec![], vec![], Default::default(), vec![]).await.unwrap_err();

    let mut measured: BTreeMap<String, usize> = BTreeMap::new();
    let mut errors: Vec<(String, String)> = Vec::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels: BTreeMap<String, String> =
            key.key().labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
        let text = format!("{labels:?}");
        assert!(!text.contains("confidential") && !text.contains("hidden"), "{text}");
        match (key.key().name(), value) {
            ("tenure_duroxide_operation_seconds", DebugValue::Histogram(times)) => {
                *measured.entry(labels["operation"].clone()).or_default() += times.len();
            }
            ("tenure_duroxide_errors_total", _) => errors.push((labels["operation"].clone(), labels["kind"].clone())),
            _ => {}
        }
    }
    for operation in ["fetch", "ack", "enqueue", "dequeue_worker", "ack_worker"] {
        assert!(measured.get(operation).is_some_and(|count| *count > 0), "{operation} is missing in {measured:?}");
    }
    assert!(errors.contains(&("ack".to_owned(), "InvalidState".to_owned())), "{errors:?}");
}
