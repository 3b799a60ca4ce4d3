//! Enqueues with the library: plain messages, repeated ones with a dedupe key, and messages with keys.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use tenure::{EnqueueOptions, Producer, QueueMessage, Store};
use tenure_chaos::history::{Answer, Item, Op};
use tokio::task::JoinSet;

use crate::job::{KEPT, KEYED, LOOPED, PLAIN, Worker};
use crate::library::{self, port};

/// How many keys each producer has.
const KEYS: u64 = 4;

pub(crate) async fn run(worker: &Arc<Worker>) {
    let Some(store) = library::connect(worker).await else { return };
    let mut tasks = JoinSet::new();
    for (task, queue) in [PLAIN, LOOPED].into_iter().enumerate() {
        tasks.spawn(stream(worker.clone(), store.clone(), queue, task as u64));
    }
    tasks.spawn(repeated(worker.clone(), store.clone()));
    for key in 0..KEYS {
        tasks.spawn(keyed(worker.clone(), store.clone(), key));
    }
    tasks.join_all().await;
}

async fn open(worker: &Worker, store: &Store, queue: &str, task: u64) -> Option<Producer> {
    library::open(worker, || Producer::on(store, queue, &worker.job.process, port(task))).await
}

fn ids(messages: &[QueueMessage]) -> Answer {
    Answer::Enqueued(messages.iter().map(|message| message.id).collect())
}

/// One call after the other, of one message or of several; what fails is not repeated.
async fn stream(worker: Arc<Worker>, store: Store, queue: &'static str, task: u64) {
    let Some(producer) = open(&worker, &store, queue, task).await else { return };
    let mut random = worker.random(task);
    let name = format!("{}/{queue}", worker.job.process);
    let mut number = 0;
    while worker.goes_on() {
        let count = if random.random_bool(0.7) { 1 } else { random.random_range(2..=5) };
        let items: Vec<Item> = (number..number + count)
            .map(|number| Item {
                uid: format!("{name}/{number}"),
                queue: queue.to_owned(),
                stream: Some(name.clone()),
                number,
                key: None,
            })
            .collect();
        number += count;
        let act = producer.batch_enqueue(&items);
        worker.call(Op::Enqueue { items: items.clone() }, worker.job.limit, act, |found| ids(found)).await;
        worker.rest(Duration::from_millis(random.random_range(10..60))).await;
    }
}

/// Repeats every enqueue until it is acknowledged, under a dedupe key.
async fn repeated(worker: Arc<Worker>, store: Store) {
    let Some(producer) = open(&worker, &store, KEPT, 10).await else { return };
    let mut random = worker.random(10);
    for number in 0.. {
        let uid = format!("{}/{KEPT}/{number}", worker.job.process);
        let options = EnqueueOptions { dedupe_key: Some(uid.clone()), ..EnqueueOptions::default() };
        let item = Item { uid, queue: KEPT.to_owned(), stream: None, number, key: None };
        let again = random.random_bool(0.1);
        loop {
            let act = async { producer.enqueue_with_options(&item, &options).await.map(|message| vec![message]) };
            let op = Op::Enqueue { items: vec![item.clone()] };
            if worker.call(op, worker.job.limit, act, |found| ids(found)).await.is_some() && !again {
                break;
            }
            if !worker.goes_on() {
                return;
            }
            worker.rest(Duration::from_millis(random.random_range(10..200))).await;
            if again && random.random_bool(0.5) {
                break;
            }
        }
        if !worker.goes_on() {
            return;
        }
        worker.rest(Duration::from_millis(random.random_range(10..60))).await;
    }
}

/// The messages of one key, one call after the other.
async fn keyed(worker: Arc<Worker>, store: Store, task: u64) {
    let Some(producer) = open(&worker, &store, KEYED, 20 + task).await else { return };
    let mut random = worker.random(20 + task);
    let key = format!("{}/key-{task}", worker.job.process);
    let options = EnqueueOptions::default().key(key.clone());
    for number in 0.. {
        if !worker.goes_on() {
            return;
        }
        let item = Item {
            uid: format!("{key}/{number}"),
            queue: KEYED.to_owned(),
            stream: None,
            number,
            key: Some(key.clone()),
        };
        let act = async { producer.enqueue_with_options(&item, &options).await.map(|message| vec![message]) };
        worker.call(Op::Enqueue { items: vec![item.clone()] }, worker.job.limit, act, |found| ids(found)).await;
        worker.rest(Duration::from_millis(random.random_range(50..250))).await;
    }
}
