//! What several processes do at once, on PostgreSQL. This program starts itself again for each of them, so it brings its
//! own `main`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure_store::conformance::numbered;
use tenure_store::{Claim, Fence, Message, Settings, Store};

const MESSAGES: usize = 20_000;

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("install") => runtime.block_on(async {
            Store::connect(&args[2]).await.unwrap().install().await.unwrap();
        }),
        Some("drain") => runtime.block_on(drain(&args[2])),
        _ => {
            runtime.block_on(ten_processes_install_at_once());
            runtime.block_on(four_processes_share_a_queue_without_loss_or_duplicate());
            runtime.block_on(processes_with_tiny_leases_never_share_an_attempt());
            println!("3 passed, 0 failed");
        }
    }
}

fn start(act: &str, dsn: &str) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([act, dsn]).stdout(Stdio::piped()).spawn().unwrap()
}

fn dsn() -> String {
    format!("{}?schema={}&pool_size=3", support::postgres_dsn(), support::unique())
}

async fn ten_processes_install_at_once() {
    let dsn = dsn();
    let children: Vec<_> = (0..10).map(|_| start("install", &dsn)).collect();
    for child in children {
        assert!(child.wait_with_output().unwrap().status.success());
    }
    Store::connect(&dsn).await.unwrap().verify().await.unwrap();
}

/// What the processes delivered, as (id, attempt), and completed, as ids.
async fn run(processes: usize, lease: Duration) -> (Vec<(i64, i64)>, Vec<i64>) {
    let dsn = dsn();
    let store = Store::connect(&dsn).await.unwrap();
    store.install().await.unwrap();
    let queue =
        store.queue_create("jobs", Settings { lease, max_attempts: None, ..Settings::default() }).await.unwrap();
    for _ in 0..MESSAGES / 1000 {
        store.enqueue(&queue, None, numbered(1000)).await.unwrap();
    }
    let children: Vec<_> = (0..processes).map(|_| start("drain", &dsn)).collect();
    let (mut delivered, mut completed) = (Vec::new(), Vec::new());
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let parts: Vec<i64> = line.split(' ').map(|part| part.parse().unwrap()).collect();
            delivered.push((parts[0], parts[1]));
            if parts[2] == 1 {
                completed.push(parts[0]);
            }
        }
    }
    let left = store.lane_stats(queue.lanes[0]).await.unwrap();
    assert_eq!((left.ready, left.leased), (0, 0));
    (delivered, completed)
}

async fn four_processes_share_a_queue_without_loss_or_duplicate() {
    let (delivered, completed) = run(4, Duration::from_secs(60)).await;
    assert_eq!(delivered.len(), MESSAGES, "nothing was delivered twice");
    assert!(delivered.iter().all(|(_, attempt)| *attempt == 1));
    assert_eq!(completed.iter().collect::<BTreeSet<_>>().len(), MESSAGES, "everything was completed once");
}

async fn processes_with_tiny_leases_never_share_an_attempt() {
    // Leases run out all the time: deliveries repeat, but no attempt is handed out twice and no completion counts twice.
    let (delivered, completed) = run(6, Duration::from_millis(3)).await;
    assert_eq!(delivered.iter().collect::<BTreeSet<_>>().len(), delivered.len(), "an attempt was handed out twice");
    assert_eq!(completed.iter().collect::<BTreeSet<_>>().len(), completed.len(), "a completion was accepted twice");
    assert_eq!(completed.len(), MESSAGES);
}

/// The child: prints every delivery as `id attempt done`.
async fn drain(dsn: &str) {
    let store = Store::connect(dsn).await.unwrap();
    let queue = store.queue_get("jobs").await.unwrap();
    let mut lines = String::new();
    loop {
        let claim = Claim { wait: Duration::from_millis(1500), ..Claim::from_queue(&queue, 50) };
        let messages = store.claim(claim).await.unwrap();
        if messages.is_empty() {
            break;
        }
        let fences: Vec<Fence> = messages.iter().map(Message::fence).collect();
        let answers = store.complete(&fences).await.unwrap();
        for (message, answer) in messages.iter().zip(answers) {
            let done = u8::from(answer == tenure_store::Answer::Done);
            lines.push_str(&format!("{} {} {done}\n", message.id, message.attempts));
        }
    }
    print!("{lines}");
}
