//! A real runtime in two processes while PostgreSQL is restarted under them, their connections are cut and one of them is
//! killed: nothing fails, nothing is lost, nothing is recorded twice. This program starts itself again for each runtime, so
//! it brings its own `main`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use duroxide::providers::Provider as _;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{ActivityContext, Client, EventKind, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus};
use tenure_cluster::{Cluster, Durability};
use tenure_duroxide::TenureProvider;

const ORCHESTRATIONS: usize = 200;
const ACTIVITIES: usize = 5;
const PATIENCE: Duration = Duration::from_secs(240);

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("run") => runtime.block_on(run(&args[2])),
        _ => {
            runtime.block_on(orchestrations_outlive_restarts_cut_connections_and_killed_processes());
            println!("1 passed, 0 failed");
        }
    }
}

async fn square(_: ActivityContext, number: String) -> Result<String, String> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    let number: u64 = number.parse().map_err(|_| "not a number".to_owned())?;
    Ok((number * number).to_string())
}

async fn parent(ctx: OrchestrationContext, number: String) -> Result<String, String> {
    let squares: Vec<_> = (0..ACTIVITIES).map(|n| ctx.schedule_activity("Square", n.to_string())).collect();
    let mut sum = 0;
    for square in ctx.join(squares).await {
        sum += square?.parse::<u64>().map_err(|error| error.to_string())?;
    }
    ctx.schedule_timer(Duration::from_millis(300)).await;
    let child = ctx.schedule_sub_orchestration("Child", number).await?;
    Ok(format!("{sum}+{child}"))
}

async fn child(ctx: OrchestrationContext, number: String) -> Result<String, String> {
    ctx.schedule_activity("Square", number).await
}

/// The child process: a runtime until it is killed.
async fn run(dsn: &str) {
    let provider = loop {
        match TenureProvider::new(dsn).await {
            Ok(provider) => break Arc::new(provider),
            Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(error) => panic!("{error:?}"),
        }
    };
    let activities = ActivityRegistry::builder().register("Square", square).build();
    let orchestrations = OrchestrationRegistry::builder().register("Parent", parent).register("Child", child).build();
    let options = RuntimeOptions {
        orchestration_concurrency: 4,
        worker_concurrency: 4,
        // Short, so that what a killed process held comes back within the test.
        worker_lock_timeout: Duration::from_secs(6),
        worker_lock_renewal_buffer: Duration::from_secs(2),
        ..RuntimeOptions::default()
    };
    let _runtime = Runtime::start_with_options(provider, activities, orchestrations, options).await;
    std::future::pending::<()>().await;
}

fn start(dsn: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["run", dsn]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Ends the connections of everybody else, as a pooler or an administrator would.
async fn cut_connections(dsn: &str) {
    let cut = "select pg_terminate_backend(pid) from pg_stat_activity \
               where backend_type = 'client backend' and pid <> pg_backend_pid()";
    if let Ok((client, connection)) = tokio_postgres::connect(dsn, tokio_postgres::NoTls).await {
        tokio::spawn(connection);
        drop(client.batch_execute(cut).await);
    }
}

async fn orchestrations_outlive_restarts_cut_connections_and_killed_processes() {
    let mut cluster = Cluster::start(Durability::None).unwrap();
    let dsn = cluster.dsn().to_owned();
    let provider = Arc::new(TenureProvider::new(&dsn).await.unwrap());
    let client = Client::new(provider.clone());
    for n in 0..ORCHESTRATIONS {
        client.start_orchestration(&format!("i{n}"), "Parent", n.to_string()).await.unwrap();
    }
    let (mut first, mut second) = (start(&dsn), start(&dsn));
    for round in 0..3 {
        tokio::time::sleep(Duration::from_millis(1200)).await;
        cut_connections(&dsn).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        tokio::task::block_in_place(|| cluster.crash_and_restart(Duration::from_millis(200))).unwrap();
        if round == 1 {
            first.kill().unwrap();
            first.wait().unwrap();
            first = start(&dsn);
        }
    }
    let management = provider.as_management_capability().unwrap();
    let deadline = Instant::now() + PATIENCE;
    for n in 0..ORCHESTRATIONS {
        let left = deadline.saturating_duration_since(Instant::now());
        let status = client.wait_for_orchestration(&format!("i{n}"), left).await.unwrap();
        let expected = format!("30+{}", n * n);
        assert!(matches!(&status, OrchestrationStatus::Completed { output, .. } if *output == expected), "{status:?}");
        let instance = format!("i{n}");
        recorded_once(&provider, &instance, ACTIVITIES).await;
        let children = management.list_children(&instance).await.unwrap();
        assert_eq!(children.len(), 1, "{children:?}");
        recorded_once(&provider, &children[0], 1).await;
    }
    for process in [&mut first, &mut second] {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    let failed = management.list_instances_by_status("Failed").await.unwrap();
    assert!(failed.is_empty(), "{failed:?}");
}

/// Every scheduled activity has one result, and nothing failed.
async fn recorded_once(provider: &TenureProvider, instance: &str, activities: usize) {
    let mut results: BTreeMap<u64, usize> = BTreeMap::new();
    for event in provider.read(instance).await.unwrap() {
        match &event.kind {
            EventKind::ActivityCompleted { .. } => {
                *results.entry(event.source_event_id.unwrap()).or_default() += 1;
            }
            EventKind::ActivityFailed { .. } | EventKind::OrchestrationFailed { .. } => panic!("{instance}: {event:?}"),
            _ => {}
        }
    }
    assert_eq!(results.len(), activities, "{instance}");
    assert!(results.values().all(|count| *count == 1), "{instance}: {results:?}");
}
