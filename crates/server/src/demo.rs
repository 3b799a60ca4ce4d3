//! `tenure demo`: a backlog produced and drained, with a progress bar and a table of rates.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use tenure_store::{Answer, Claim, Error, Fence, Kind, Message, NewMessage, Queue, Result, Settings, Store};
use tokio::task::JoinSet;

/// Callers that enqueue one message at a time, and consumers that drain.
const CALLERS: u64 = 64;
const CONSUMERS: usize = 8;

#[derive(Args)]
pub(crate) struct Demo {
    /// Where to run it: sqlite:path, postgres://…, 'host=… dbname=…', turso:///path or :memory:.
    #[arg(long, env = "TENURE_DSN", hide_env_values = true, default_value = "sqlite:tenure-demo.db")]
    dsn: String,
    /// How many messages.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(64..=100_000_000))]
    messages: u64,
    /// Keeps the queue, and the file, for a look at them.
    #[arg(long)]
    keep: bool,
}

/// One line of the table.
struct Phase {
    name: &'static str,
    count: u64,
    elapsed: Duration,
}

pub(crate) async fn run(demo: &Demo) -> Result<()> {
    let store = Store::connect(&demo.dsn).await?;
    store.install().await?;
    let name = format!("demo-{}", std::process::id());
    let queue = store.queue_create(&name, Settings::default()).await?;
    println!("{} messages of 100 bytes on {}, every commit durable", demo.messages, store.backend().name());
    let mut phases = Vec::new();
    let single = (demo.messages / 10).min(20_000) / CALLERS * CALLERS;
    phases.push(enqueue_single(&store, &queue, single).await?);
    phases.push(enqueue_bulk(&store, &queue, demo.messages - single).await?);
    phases.push(drain(&store, &queue, demo.messages).await?);
    println!("{}", table(&phases));
    if demo.keep {
        println!("queue '{name}' is kept");
        return Ok(());
    }
    store.queue_delete(&name).await?;
    remove(&demo.dsn);
    Ok(())
}

fn payload(n: u64) -> String {
    format!(r#"{{"job":{n:012},"to":"someone@example.org","body":"{}"}}"#, "lorem ipsum ".repeat(4))
}

fn bar(name: &'static str, count: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:28} {wide_bar} {human_pos:>9}/{human_len} {per_sec:>12}");
    let bar = ProgressBar::new(count).with_message(name);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

async fn enqueue_single(store: &Store, queue: &Queue, count: u64) -> Result<Phase> {
    let name = "enqueue, 64 single callers";
    let bar = bar(name, count);
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..CALLERS {
        let (store, queue, bar) = (store.clone(), queue.clone(), bar.clone());
        tasks.spawn(async move {
            for n in 0..count / CALLERS {
                store.enqueue(&queue, None, vec![NewMessage::new(payload(caller * count + n))]).await?;
                bar.inc(1);
            }
            Result::Ok(())
        });
    }
    finish(tasks).await?;
    bar.finish();
    Ok(Phase { name, count, elapsed: started.elapsed() })
}

async fn enqueue_bulk(store: &Store, queue: &Queue, count: u64) -> Result<Phase> {
    let name = "enqueue, batches of 1000";
    let bar = bar(name, count);
    let started = Instant::now();
    let mut left = count;
    while left > 0 {
        let size = left.min(1000);
        let batch = (0..size).map(|n| NewMessage::new(payload(n))).collect();
        store.enqueue(queue, None, batch).await?;
        bar.inc(size);
        left -= size;
    }
    bar.finish();
    Ok(Phase { name, count, elapsed: started.elapsed() })
}

async fn drain(store: &Store, queue: &Queue, count: u64) -> Result<Phase> {
    let name = "lease and complete, by 100";
    let bar = bar(name, count);
    let done = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..CONSUMERS {
        let (store, queue, bar, done) = (store.clone(), queue.clone(), bar.clone(), done.clone());
        tasks.spawn(async move {
            while done.load(Ordering::Relaxed) < count {
                let claim = Claim { wait: Duration::from_millis(50), ..Claim::from_queue(&queue, 100) };
                let messages = store.claim(claim).await?;
                let fences: Vec<Fence> = messages.iter().map(Message::fence).collect();
                let answers = store.complete(&fences).await?;
                let completed = answers.iter().filter(|answer| **answer == Answer::Done).count() as u64;
                done.fetch_add(completed, Ordering::Relaxed);
                bar.inc(completed);
            }
            Result::Ok(())
        });
    }
    finish(tasks).await?;
    bar.finish();
    Ok(Phase { name, count, elapsed: started.elapsed() })
}

async fn finish(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(task) = tasks.join_next().await {
        task.map_err(|error| Error::new(Kind::Closed, "a task of the demo died").with_source(error))??;
    }
    Ok(())
}

fn table(phases: &[Phase]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["phase", "messages", "seconds", "messages/s"]);
    for phase in phases {
        let seconds = phase.elapsed.as_secs_f64();
        table.add_row([
            phase.name.to_owned(),
            phase.count.to_string(),
            format!("{seconds:.2}"),
            format!("{:.0}", phase.count as f64 / seconds),
        ]);
    }
    for column in 1..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Removes the demo's own default file, and nothing that a user named.
fn remove(dsn: &str) {
    if dsn == "sqlite:tenure-demo.db" {
        for suffix in ["", "-wal", "-shm"] {
            if let Err(error) = std::fs::remove_file(format!("tenure-demo.db{suffix}"))
                && error.kind() != std::io::ErrorKind::NotFound
            {
                eprintln!("tenure: tenure-demo.db{suffix} could not be removed: {error}");
            }
        }
    }
}
