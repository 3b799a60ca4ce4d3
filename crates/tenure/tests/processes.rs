//! Several processes drain one queue with `Consumer::run`. This program starts itself again for each, so it brings its
//! own `main`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{Admin, Config, Consumer, Delivery, Error, Producer};

const MESSAGES: u32 = 20_000;

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("drain") => runtime.block_on(drain(&args[2], args[3].parse().unwrap())),
        _ => {
            runtime.block_on(four_processes_drain_a_queue_without_loss_or_duplicate());
            println!("1 passed, 0 failed");
        }
    }
}

async fn four_processes_drain_a_queue_without_loss_or_duplicate() {
    let server = std::env::var("TENURE_TEST_POSTGRES")
        .expect("TENURE_TEST_POSTGRES is not set: run `cargo xtask test tenure`, which starts a throw-away server");
    let dsn = format!("{server}?schema=drain_{}&pool_size=4", std::process::id());
    let config = Config::from_dsn(&dsn);
    let admin = Admin::new(&config).await.unwrap();
    admin.install().await.unwrap();
    admin.create_queue("jobs").await.unwrap();
    let producer = Producer::new(&config, "jobs", "host", 0).await.unwrap();
    let numbers: Vec<u32> = (0..MESSAGES).collect();
    for batch in numbers.chunks(5_000) {
        producer.batch_enqueue(batch).await.unwrap();
    }
    let program = std::env::current_exe().unwrap();
    let start = |port: u32| {
        let mut command = Command::new(&program);
        command.args(["drain", &dsn, &port.to_string()]).stdout(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (1..=4).map(start).collect();
    let mut handled = Vec::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        handled.extend(String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse::<u32>().unwrap()));
    }
    assert_eq!(handled.len(), MESSAGES as usize, "nothing was handled twice");
    assert_eq!(handled.iter().collect::<BTreeSet<_>>().len(), MESSAGES as usize, "nothing was lost");
    assert_eq!(admin.get_queue_metrics("jobs").await.unwrap().total_messages, 0);
}

/// The child: handles until the queue is empty, and prints what it handled.
async fn drain(dsn: &str, port: i32) {
    let consumer = Consumer::new(&Config::from_dsn(dsn), "jobs", "host", port).await.unwrap();
    let admin = Admin::new(&Config::from_dsn(dsn)).await.unwrap();
    let handled = Arc::new(Mutex::new(Vec::new()));
    let log = handled.clone();
    let handle = move |delivery: Delivery| {
        let log = log.clone();
        async move {
            log.lock().unwrap().push(delivery.json::<u32>()?);
            Ok::<_, Error>(())
        }
    };
    let empty = async {
        while admin.get_queue_metrics("jobs").await.unwrap().total_messages > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    consumer.run(handle).concurrency(32).until(empty).await.unwrap();
    for number in handled.lock().unwrap().iter() {
        println!("{number}");
    }
}
