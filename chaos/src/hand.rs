//! Leases with the library by hand: plain messages, and whole keys.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;
use tenure::{Consumer, Error, MessageQueue, QueueMessage, Store};
use tenure_chaos::history::{Answer, Finish, Leased, Op, Verb, micros, now};
use tokio::task::JoinSet;

use crate::job::{KEPT, KEYED, LEASE, LOOPED, PLAIN, Worker};
use crate::library::{self, port};

/// For how long the store repeats a verb that may have been carried out: its reply was lost.
const REPEATED: Duration = Duration::from_secs(30);
/// How long a claim waits for messages.
const WAIT: Duration = Duration::from_millis(500);

pub(crate) async fn run(worker: &Arc<Worker>) {
    let Some(store) = library::connect(worker).await else { return };
    let mut tasks = JoinSet::new();
    for (task, queue) in [PLAIN, PLAIN, KEPT].into_iter().enumerate() {
        tasks.spawn(messages(worker.clone(), store.clone(), queue, task as u64, false));
    }
    tasks.spawn(keys(worker.clone(), store.clone(), 10, false));
    tasks.join_all().await;
}

/// Completes everything, until told to stop.
pub(crate) async fn drain(worker: &Arc<Worker>) {
    let Some(store) = library::connect(worker).await else { return };
    let mut tasks = JoinSet::new();
    for (task, queue) in [PLAIN, KEPT, LOOPED].into_iter().enumerate() {
        tasks.spawn(messages(worker.clone(), store.clone(), queue, task as u64, true));
    }
    tasks.spawn(keys(worker.clone(), store.clone(), 10, true));
    tasks.join_all().await;
}

/// A consumer, and the worker that records what it does.
struct Holder {
    worker: Arc<Worker>,
    consumer: Consumer,
}

async fn messages(worker: Arc<Worker>, store: Store, queue: &'static str, task: u64, draining: bool) {
    let open = || Consumer::on(&store, queue, &worker.job.process, port(task));
    let Some(consumer) = library::open(&worker, open).await else { return };
    let holder = Arc::new(Holder { worker: worker.clone(), consumer });
    let mut random = worker.random(task);
    let mut finishing = JoinSet::new();
    while worker.goes_on() {
        let batch = if draining { 50 } else { random.random_range(1..=5) };
        let lock =
            if draining { Duration::from_secs(10) } else { Duration::from_millis(random.random_range(1500..3500)) };
        let op = Op::Lease { queue: queue.to_owned() };
        let act = async {
            let found = holder.consumer.dequeue_within(WAIT, batch, lock).await?;
            Ok::<_, Error>(found.into_iter().map(|message| (worker.leased(&message), message)).collect::<Vec<_>>())
        };
        let answer =
            |found: &Vec<(Leased, QueueMessage)>| Answer::Leased(found.iter().map(|(l, _)| l.clone()).collect());
        let Some(found) = worker.call(op, WAIT + worker.job.limit, act, answer).await else {
            worker.rest(Duration::from_millis(200)).await;
            continue;
        };
        for (lease, message) in found {
            let choice = if draining { 99 } else { random.random_range(0..100) };
            finishing.spawn(holder.clone().finish(lease, message, choice));
        }
        while finishing.len() > 20 && finishing.join_next().await.is_some() {}
        while finishing.try_join_next().is_some() {}
    }
    finishing.join_all().await;
}

impl Holder {
    async fn finish(self: Arc<Self>, lease: Leased, message: QueueMessage, choice: u32) {
        let lease = lease.lease;
        let short = Duration::from_millis(rand::random_range(0..30));
        match choice {
            0..15 => {
                // A completion beside an extension of the same lease.
                tokio::join!(self.extend(lease, &message), async {
                    tokio::time::sleep(short / 10).await;
                    self.end(lease, Verb::Complete, self.consumer.complete(&message)).await;
                });
            }
            15..20 => {
                self.extend(lease, &message).await;
                tokio::time::sleep(short).await;
                self.extend(lease, &message).await;
                // The archive of this queue must have everything.
                let keeps = self.consumer.queue_name() == KEPT;
                let ended = async {
                    if keeps { self.consumer.complete(&message).await } else { self.consumer.delete(&message).await }
                };
                self.end(lease, Verb::Complete, ended).await;
            }
            20..28 => self.end(lease, Verb::Return, self.consumer.release(&message)).await,
            28..34 => {
                let delay = Duration::from_millis(rand::random_range(50..500));
                self.end(lease, Verb::Return, self.consumer.retry_after(&message, delay)).await;
            }
            34..37 => self.end(lease, Verb::Bury, self.consumer.bury(&message, "buried on purpose")).await,
            // Forgotten: its lease expires.
            37..40 => {}
            40..44 => {
                tokio::time::sleep(Duration::from_secs(4)).await;
                self.end(lease, Verb::Complete, self.consumer.complete(&message)).await;
            }
            44..60 => {
                tokio::time::sleep(short).await;
                let archived = async { Ok(self.consumer.archive(&message).await?.is_some()) };
                self.end(lease, Verb::Complete, archived).await;
            }
            _ => {
                tokio::time::sleep(short).await;
                self.end(lease, Verb::Complete, self.consumer.complete(&message)).await;
            }
        }
    }

    async fn end(&self, lease: u64, verb: Verb, act: impl Future<Output = tenure::Result<bool>>) {
        let op = Op::Finish { verb, leases: vec![lease] };
        let answer = |held: &bool| Answer::Finished(vec![if *held { Finish::Done } else { Finish::Lost }]);
        self.worker.call(op, REPEATED + self.worker.job.limit, act, answer).await;
    }

    async fn extend(&self, lease: u64, message: &QueueMessage) {
        let extra = Duration::from_millis(rand::random_range(500..1500));
        let op = Op::Extend { leases: vec![lease], extra: micros(extra) };
        let act = self.consumer.extend_visibility(message, extra);
        self.worker.call(op, REPEATED + self.worker.job.limit, act, |held| Answer::Extended(*held)).await;
    }
}

/// Leases keys, one after the other.
async fn keys(worker: Arc<Worker>, store: Store, task: u64, draining: bool) {
    let queue = MessageQueue::on(&store);
    let mut random = worker.random(task);
    while worker.goes_on() {
        let asked = now();
        let act = async {
            let batch = queue.dequeue_batch_within(KEYED, WAIT).await?;
            Ok::<_, Error>(batch.map(|batch| {
                // Its holder has proof of the queue's lease, counted from the call.
                let until = Some(asked + micros(LEASE));
                let leases = batch.messages.iter().map(|message| Leased { until, ..worker.leased(message) });
                (leases.collect::<Vec<_>>(), batch.lock_token)
            }))
        };
        let answer = |found: &Option<(Vec<Leased>, _)>| {
            Answer::Leased(found.as_ref().map(|(leases, _)| leases.clone()).unwrap_or_default())
        };
        let op = Op::Lease { queue: KEYED.to_owned() };
        match worker.call(op, WAIT + worker.job.limit, act, answer).await {
            Some(Some((leases, token))) => {
                let numbers = leases.iter().map(|lease| lease.lease).collect();
                end_key(&worker, &queue, numbers, &token, &mut random, draining).await;
            }
            Some(None) => {}
            None => worker.rest(Duration::from_millis(200)).await,
        }
        if !draining {
            worker.rest(Duration::from_millis(random.random_range(100..400))).await;
        }
    }
}

async fn end_key(
    worker: &Worker,
    queue: &MessageQueue,
    leases: Vec<u64>,
    token: &tenure::LockToken,
    random: &mut StdRng,
    draining: bool,
) {
    let choice = if draining { 99 } else { random.random_range(0..100) };
    let count = leases.len();
    let held = |result: tenure::Result<()>| match result {
        Ok(()) => Ok(Finish::Done),
        Err(Error::LeaseLost { .. }) => Ok(Finish::Lost),
        Err(error) => Err(error),
    };
    let answer = |answer: &Finish| Answer::Finished(vec![*answer; count]);
    if choice < 40 {
        let extra = Duration::from_millis(500);
        let op = Op::Extend { leases: leases.clone(), extra: micros(extra) };
        let act = queue.extend(token, extra);
        worker.call(op, worker.job.limit, act, |held| Answer::Extended(*held)).await;
        tokio::time::sleep(Duration::from_millis(random.random_range(0..100))).await;
    }
    match choice % 10 {
        // Forgotten: its lease expires.
        0 => {}
        1..3 => {
            let op = Op::Finish { verb: Verb::Return, leases };
            let delay = (choice % 2 == 0).then(|| Duration::from_millis(100).into());
            let act = async { held(queue.abandon(token, delay).await) };
            worker.call(op, worker.job.limit, act, answer).await;
        }
        _ => {
            let op = Op::Finish { verb: Verb::Complete, leases };
            let act = async { held(queue.ack(token).await) };
            worker.call(op, worker.job.limit, act, answer).await;
        }
    }
}
