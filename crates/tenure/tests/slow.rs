//! A PostgreSQL that answers extensions of leases late: the leases are kept as long as the answers come in time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::time::Duration;

use tenure::{Admin, Consumer, Delivery, Error, Producer, Store, Summary};

const LEASE: Duration = Duration::from_secs(8);

/// More than a quarter of a lease, and less than the three eighths after which an unanswered extension is too late.
const ANSWER: &str = "2.4";

/// Handles one message for longer than its lease while every extension takes a while. Whether the handler kept its lease.
async fn handled_for_long(round: u32) -> (bool, Summary) {
    let dsn = std::env::var("TENURE_TEST_POSTGRES")
        .expect("TENURE_TEST_POSTGRES is not set: run `cargo xtask test tenure`, which starts a throw-away server");
    let schema = format!("slow_{}_{round}", std::process::id());
    let store = Store::connect(&format!("{dsn}?schema={schema}")).await.unwrap();
    store.install().await.unwrap();
    Admin::on(&store).create_queue("jobs").await.unwrap();
    let producer = Producer::on(&store, "jobs", "host", 1).await.unwrap();
    let consumer = Consumer::on(&store, "jobs", "host", 2).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let slow = format!(
        "create function {schema}.wait() returns trigger language plpgsql
         as $$ begin perform pg_sleep({ANSWER}); return new; end $$;
         create trigger slow before update on {schema}.message for each row
         when (new.attempts = old.attempts and new.leased_until > old.leased_until) execute function {schema}.wait()"
    );
    client.batch_execute(&slow).await.unwrap();
    producer.enqueue("long").await.unwrap();
    let (tell, told) = tokio::sync::oneshot::channel();
    let tell = std::sync::Mutex::new(Some(tell));
    let handle = move |delivery: Delivery| {
        let tell = tell.lock().unwrap().take().unwrap();
        async move {
            let work = tokio::time::sleep(LEASE + LEASE / 8);
            let kept = delivery.lease_lost().run_until_cancelled(work).await.is_some();
            tell.send(kept).unwrap();
            Ok::<_, Error>(())
        }
    };
    let mut kept = false;
    let until = async { kept = told.await.unwrap() };
    let summary = consumer.run(handle).lease(LEASE).until(until).await.unwrap();
    (kept, summary)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_kept_when_extensions_are_answered_late() {
    let mut rounds = Vec::new();
    // A machine that stalls makes an answer too late in one round, and not in all.
    while rounds.len() < 4 {
        let (kept, summary) = handled_for_long(u32::try_from(rounds.len()).unwrap()).await;
        if kept && (summary.completed, summary.lost) == (1, 0) {
            return;
        }
        rounds.push((kept, summary));
    }
    panic!("the lease was lost in every round: {rounds:?}");
}
