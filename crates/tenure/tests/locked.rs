//! A handler that completes its message in a transaction of its own and keeps that open for longer than a lease, on PostgreSQL:
//! the leases of all other handlers are extended meanwhile.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{Admin, Consumer, Delivery, Error, Producer, Store, Summary};

const OTHERS: usize = 40;
const LEASE: Duration = Duration::from_millis(3200);

/// How a handler completes its message.
#[derive(Clone, Copy, Debug)]
enum Way {
    Library,
    /// The function in SQL: the run loop does not know that the transaction completes the message.
    Sql,
}

/// What the handlers of one round have seen.
#[derive(Debug, Default)]
struct Seen {
    /// How often each message was handled.
    handled: BTreeMap<i64, u32>,
    /// Handlers other than the one with the transaction that were told that their lease was lost.
    told: usize,
    ended: usize,
}

/// Completes the message and keeps the transaction open for longer than its lease.
async fn hold(consumer: &Consumer, delivery: &Delivery, schema: &str, way: Way) {
    let (mut client, connection) = tokio_postgres::connect(&dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let transaction = client.transaction().await.unwrap();
    match way {
        Way::Library => consumer.complete_in_postgres(&transaction, delivery).await.unwrap(),
        Way::Sql => {
            let complete = format!("select {schema}.complete($1::bigint, $2::bigint)");
            let (position, attempt) = (delivery.position().unwrap(), i64::from(delivery.read_ct));
            let row = transaction.query_one(&complete, &[&position, &attempt]).await.unwrap();
            assert!(row.get::<_, bool>(0));
        }
    }
    tokio::time::sleep(LEASE * 3 / 2).await;
    transaction.commit().await.unwrap();
}

fn dsn() -> String {
    std::env::var("TENURE_TEST_POSTGRES")
        .expect("TENURE_TEST_POSTGRES is not set: run `cargo xtask test tenure`, which starts a throw-away server")
}

async fn round(way: Way, number: usize) -> (Seen, Summary) {
    let schema = format!("locked_{way:?}_{}_{number}", std::process::id()).to_lowercase();
    let store = Store::connect(&format!("{}?schema={schema}", dsn())).await.unwrap();
    store.install().await.unwrap();
    Admin::on(&store).create_queue("jobs").await.unwrap();
    let producer = Producer::on(&store, "jobs", "host", 1).await.unwrap();
    let consumer = Consumer::on(&store, "jobs", "host", 2).await.unwrap();
    // In the middle, so that leases before and behind it share its statement.
    let payloads: Vec<usize> = (0..=OTHERS).collect();
    producer.batch_enqueue(&payloads).await.unwrap();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (noted, own) = (seen.clone(), consumer.clone());
    let handle = move |delivery: Delivery| {
        let (seen, own, schema) = (noted.clone(), own.clone(), schema.clone());
        async move {
            *seen.lock().unwrap().handled.entry(delivery.id).or_default() += 1;
            if delivery.json::<usize>().unwrap() == OTHERS / 2 {
                hold(&own, &delivery, &schema, way).await;
            } else {
                let work = tokio::time::sleep(LEASE * 5 / 4);
                let told = delivery.lease_lost().run_until_cancelled(work).await.is_none();
                seen.lock().unwrap().told += usize::from(told);
            }
            seen.lock().unwrap().ended += 1;
            Ok::<_, Error>(())
        }
    };
    let all = async {
        while seen.lock().unwrap().ended <= OTHERS {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // A message that was freed is handled again.
        tokio::time::sleep(LEASE / 2).await;
    };
    let summary = consumer.run(handle).concurrency(2 * OTHERS).lease(LEASE).until(all).await.unwrap();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    (seen, summary)
}

async fn others_keep_their_leases(way: Way, completed: usize) {
    let mut rounds = Vec::new();
    // A machine that stalls for more than a second loses leases in one round, and not in all.
    while rounds.len() < 4 {
        let (seen, summary) = round(way, rounds.len()).await;
        let once = seen.handled.values().all(|times| *times == 1);
        if once && seen.told == 0 && summary.completed == completed as u64 {
            return;
        }
        rounds.push((seen, summary));
    }
    panic!("{rounds:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completing_transaction_that_stays_open_costs_no_other_handler_its_lease() {
    others_keep_their_leases(Way::Library, OTHERS + 1).await;
}

/// The lease of the message itself is not kept for a transaction that the loop does not know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_in_sql_that_stays_open_costs_no_other_handler_its_lease() {
    others_keep_their_leases(Way::Sql, OTHERS).await;
}
