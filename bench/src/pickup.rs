//! S5: how long an idle consumer takes to get a message, in this process and in another one.

use std::process::Stdio;
use std::time::Duration;

use tenure_store::{Claim, NewMessage, Store};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio_postgres::NoTls;

use crate::Result;
use crate::load::{Measured, made_at, now, payload};
use crate::{bare, ours};

/// Messages per measurement, some milliseconds apart.
const COUNT: usize = 150;

fn measured(mut nanos: Vec<u64>) -> Measured {
    nanos.sort_unstable();
    let at = |q: f64| nanos.get((nanos.len() as f64 * q) as usize).copied().unwrap_or(0) as f64 / 1e6;
    Measured { rate: nanos.len() as f64, p50: at(0.5), p99: at(0.99), ..Measured::default() }
}

async fn pause(n: usize) {
    tokio::time::sleep(Duration::from_millis(20 + (n as u64 * 7) % 23)).await;
}

/// Producer and consumer in this process.
pub(crate) async fn same_process(dsn: &str) -> Result<Measured> {
    let (store, queue) = ours::fresh(dsn).await?;
    let (consumer, lanes) = (store.clone(), queue.clone());
    let task = tokio::spawn(async move {
        let mut latencies = Vec::new();
        while latencies.len() < COUNT {
            let claim = Claim { wait: Duration::from_secs(5), ..Claim::from_queue(&lanes, 1) };
            for message in consumer.claim(claim).await? {
                latencies.push(now().saturating_sub(made_at(&message.payload)));
                consumer.complete(&[message.fence()]).await?;
            }
        }
        Result::Ok(latencies)
    });
    // On a worker of the runtime, as in any service: the main thread is one wake-up further away.
    let producer = tokio::spawn(async move {
        for n in 0..COUNT {
            pause(n).await;
            store.enqueue(&queue, None, vec![NewMessage::new(payload(0))]).await?;
        }
        Result::Ok(())
    });
    producer.await??;
    Ok(measured(task.await??))
}

/// What the shortest pickup must contain: one durable insert by an idle process.
pub(crate) async fn bare_insert(dsn: &str) -> Result<Measured> {
    bare::reset(dsn, 0).await?;
    let bare = bare::Idle::connect(dsn).await?;
    let producer = tokio::spawn(async move {
        let mut latencies = Vec::new();
        for n in 0..COUNT {
            pause(n).await;
            let started = now();
            bare.insert().await?;
            latencies.push(now().saturating_sub(started));
        }
        Result::Ok(latencies)
    });
    Ok(measured(producer.await??))
}

/// The consumer is a process of its own: this program again.
pub(crate) async fn other_process(dsn: &str, system: &str) -> Result<Measured> {
    let ours = match system {
        "ours" => Some(ours::fresh(dsn).await?),
        _ => {
            bare::reset(dsn, 0).await?;
            None
        }
    };
    let mut child = tokio::process::Command::new(std::env::current_exe()?)
        .args(["--consume", system])
        .env("TENURE_BENCH_POSTGRES", dsn)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("the consumer has no output")?).lines();
    lines.next_line().await?;
    let bare = bare::Idle::connect(dsn).await?;
    for n in 0..COUNT {
        pause(n).await;
        match &ours {
            Some((store, queue)) => drop(store.enqueue(queue, None, vec![NewMessage::new(payload(0))]).await?),
            None => bare.insert_and_notify().await?,
        }
    }
    let mut latencies = Vec::new();
    while let Some(line) = lines.next_line().await? {
        latencies.push(line.parse()?);
    }
    child.wait().await?;
    Ok(measured(latencies))
}

/// The other process: prints a line when it is ready, then one latency per message.
pub(crate) async fn consume(dsn: &str, system: &str) -> Result<()> {
    if system == "ours" { consume_ours(dsn).await } else { consume_bare(dsn).await }
}

async fn consume_ours(dsn: &str) -> Result<()> {
    let store = Store::connect(&ours::schema(dsn)).await?;
    let queue = store.queue_get("bench").await?;
    store.claim(Claim { wait: Duration::from_millis(300), ..Claim::from_queue(&queue, 1) }).await?;
    println!("ready");
    for _ in 0..COUNT {
        let claim = Claim { wait: Duration::from_secs(5), ..Claim::from_queue(&queue, 1) };
        for message in store.claim(claim).await? {
            println!("{}", now().saturating_sub(made_at(&message.payload)));
            store.complete(&[message.fence()]).await?;
        }
    }
    Ok(())
}

async fn consume_bare(dsn: &str) -> Result<()> {
    let (listener, mut connection) = tokio_postgres::connect(dsn, NoTls).await?;
    let (sender, mut notes) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(_)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if sender.send(()).is_err() {
                return;
            }
        }
    });
    listener.batch_execute("listen bare").await?;
    let bare = bare::Idle::connect(dsn).await?;
    println!("ready");
    let mut seen = 0;
    while seen < COUNT {
        notes.recv().await.ok_or("the bare listener ended")?;
        for latency in bare.claim_and_delete().await? {
            println!("{latency}");
            seen += 1;
        }
    }
    Ok(())
}
