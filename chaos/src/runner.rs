//! Handlers in the library's run loop: plain messages and messages with keys.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use tenure::{Consumer, Delivery, Outcome, RetryPolicy, Store};
use tenure_chaos::history::{Event, Verb};
use tokio::task::JoinSet;

use crate::job::{KEYED, LOOPED, Worker};
use crate::library::{self, port};

/// How long a lease of the loop lasts.
const LEASE: Duration = Duration::from_secs(2);
/// For how long a lease is watched: the loop may keep it long after its handler has returned.
const WATCH: Duration = Duration::from_secs(60);

pub(crate) async fn run(worker: &Arc<Worker>) {
    let Some(store) = library::connect(worker).await else { return };
    let mut tasks = JoinSet::new();
    for (task, queue) in [LOOPED, KEYED].into_iter().enumerate() {
        tasks.spawn(handle_all(worker.clone(), store.clone(), queue, task as u64));
    }
    tasks.join_all().await;
}

async fn handle_all(worker: Arc<Worker>, store: Store, queue: &'static str, task: u64) {
    while worker.goes_on() {
        let open = || Consumer::on(&store, queue, &worker.job.process, port(task));
        let Some(consumer) = library::open(&worker, open).await else { return };
        let handling = worker.clone();
        let handler = move |delivery: Delivery| handle(handling.clone(), delivery);
        let retry =
            RetryPolicy { first: Duration::from_millis(100), max: Duration::from_secs(1), ..RetryPolicy::default() };
        let stop = worker.stop.clone();
        let run = consumer.run(handler).concurrency(8).lease(LEASE).retry(retry).until(stop.cancelled_owned());
        if let Err(error) = run.await {
            eprintln!("{}: the loop over '{queue}' ended: {error}", worker.job.process);
            worker.rest(Duration::from_millis(300)).await;
        }
    }
}

async fn handle(worker: Arc<Worker>, delivery: Delivery) -> Result<Outcome, &'static str> {
    let mut lease = worker.leased(&delivery.message);
    if delivery.key.is_some() {
        // The deadline of a key is not its messages' own.
        lease.until = None;
    }
    let number = lease.lease;
    worker.recorder.write(Event::Begin { lease });
    let (watching, lost) = (worker.clone(), delivery.lease_lost().clone());
    tokio::spawn(async move {
        if tokio::time::timeout(WATCH, lost.cancelled()).await.is_ok() {
            watching.recorder.write(Event::LeaseLost { lease: number });
        }
    });
    let slow = if delivery.key.is_some() { 0.02 } else { 0.06 };
    let (work, choice) = {
        let mut random = rand::rng();
        let work =
            if random.random_bool(slow) { random.random_range(2_000..3_500) } else { random.random_range(0..40) };
        (Duration::from_millis(work), random.random_range(0..100))
    };
    tokio::select! {
        () = tokio::time::sleep(work) => {}
        () = delivery.lease_lost().cancelled() => {
            // Told before the lease has ended: the loop gives the message back as it does after any failure.
            worker.recorder.write(Event::End { lease: number, verb: Verb::Return });
            return Err("the lease was lost");
        }
    }
    let (verb, result) = match choice {
        0..4 => (Verb::Return, Ok(Outcome::RetryAfter(Duration::from_millis(100)))),
        4..7 => (Verb::Return, Err("a failure, on purpose")),
        7..9 => (Verb::Bury, Ok(Outcome::Bury("buried on purpose".to_owned()))),
        _ => (Verb::Complete, Ok(Outcome::Complete)),
    };
    worker.recorder.write(Event::End { lease: number, verb });
    result
}
