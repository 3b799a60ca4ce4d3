//! Statements that a trigger of the test refuses or delays: what is left when an act fails half-way, or is slow.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use tenure_store::conformance::{Harness, payloads};
use tenure_store::{Claim, NewMessage, Settings, WorkerStatus};

/// A connection to a store's schema beside the store.
async fn client(h: &Harness) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&support::postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("set search_path to {}", schema(h))).await.unwrap();
    client
}

fn schema(h: &Harness) -> &str {
    h.dsn.split("schema=").nth(1).and_then(|rest| rest.split('&').next()).unwrap()
}

/// Does something for every row of a table that is inserted or updated under a condition.
async fn interfere(h: &Harness, table: &str, condition: &str, what: &str) {
    let trigger = format!(
        "create function interfere() returns trigger language plpgsql as $$ begin {what}; return new; end $$;
         create trigger interfere before insert or update on {table}
         for each row when ({condition}) execute function interfere()"
    );
    client(h).await.batch_execute(&trigger).await.unwrap();
}

/// The message that no claim can lease.
const REFUSE_POISON: (&str, &str) = ("new.payload = 'poison' and new.attempts > 0", "raise exception 'refused'");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_answers_with_what_the_first_lane_gave_when_the_second_fails() {
    let h = support::postgres().await;
    let queue = h.queue_with(Settings { partitions: 2, ..Settings::default() }).await;
    h.store.enqueue(&queue, Some(0), vec![NewMessage::new("x")]).await.unwrap();
    h.store.enqueue(&queue, Some(1), vec![NewMessage::new("poison")]).await.unwrap();
    interfere(&h, "message", REFUSE_POISON.0, REFUSE_POISON.1).await;
    let claim = || h.store.claim(Claim::from_queue(&queue, 9));
    assert_eq!(payloads(&claim().await.unwrap()), ["x"]);
    // Nothing was leased before this failure.
    assert!(claim().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_answers_with_what_its_first_round_gave_when_the_second_fails() {
    let h = support::postgres().await;
    let queue = h.queue().await;
    for payload in ["x", "y"] {
        h.put(&queue, payload).await;
    }
    let dead = tenure_store::Import { attempts: 1, max_attempts: Some(1), ..tenure_store::Import::default() };
    h.store.message_import(queue.lanes[0], vec![dead]).await.unwrap();
    h.put(&queue, "poison").await;
    interfere(&h, "message", REFUSE_POISON.0, REFUSE_POISON.1).await;
    // The dead message has a place in the first round, which is free again in the second.
    assert_eq!(payloads(&h.take(&queue, 3).await), ["x", "y"]);
    assert_eq!(h.store.archive_count(queue.id).await.unwrap(), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_is_not_stopped_when_its_leases_cannot_be_released() {
    for h in [support::postgres().await, support::file("sqlite:").await] {
        let queue = h.queue().await;
        h.put(&queue, "x").await;
        let worker = h.store.worker_register("w", None).await.unwrap().id;
        let claim = Claim { worker: Some(worker), ..Claim::from_queue(&queue, 1) };
        assert_eq!(h.store.claim(claim).await.unwrap().len(), 1);
        if h.dsn.starts_with("sqlite:") {
            let other = rusqlite::Connection::open(tenure_store::dsn_file(&h.dsn).unwrap()).unwrap();
            let refuse = "create trigger interfere before update on tenure_message when new.leased_until = 0
                          begin select raise(abort, 'refused'); end";
            other.execute_batch(refuse).unwrap();
        } else {
            interfere(&h, "message", "new.leased_until = 0", "raise exception 'refused'").await;
        }
        h.store.worker_shutdown(worker).await.unwrap_err();
        assert_eq!(h.store.worker_get(worker).await.unwrap().status, WorkerStatus::Ready);
        assert_eq!(h.store.worker_held(worker).await.unwrap(), 1);
    }
}

/// How a worker claims: plain messages, or a key of which the statement on this table waits.
#[derive(Clone, Copy)]
enum Claiming {
    Messages,
    Key(&'static str),
}

async fn count(client: &tokio_postgres::Client, text: &str, of: i64) -> i64 {
    client.query_one(text, &[&of]).await.unwrap().get(0)
}

/// Stops a worker while a claim of it runs that began before: it has seen the worker ready, and leases after the worker's other
/// leases were released.
async fn stop_during_a_claim(claiming: Claiming, stop: impl AsyncFn(&Harness, i64)) {
    let h = Arc::new(support::postgres().await);
    let queue = h.queue().await;
    let key = matches!(claiming, Claiming::Key(_)).then(|| "k".to_owned());
    h.put_message(&queue, NewMessage { key, ..NewMessage::new("x") }).await;
    let worker = h.store.worker_register("w", None).await.unwrap().id;
    let table = if let Claiming::Key(table) = claiming { table } else { "message" };
    let beside = client(&h).await;
    // A number for advisory locks that no other test has.
    let lock = schema(&h).bytes().fold(17, |hash: i64, byte| (hash * 31 + i64::from(byte)) & 0x7fff_ffff);
    beside.execute("select pg_advisory_lock($1)", &[&lock]).await.unwrap();
    interfere(&h, table, "new.leased_until > 0", &format!("perform pg_advisory_xact_lock({lock})")).await;
    let claim = tokio::spawn({
        let (h, queue) = (h.clone(), queue.clone());
        async move {
            match claiming {
                Claiming::Messages => {
                    drop(h.store.claim(Claim { worker: Some(worker), ..Claim::from_queue(&queue, 1) }).await);
                }
                Claiming::Key(_) => {
                    drop(h.store.claim_key(&queue.lanes, None, Some(worker), Duration::ZERO).await);
                }
            }
        }
    });
    let waits = "select count(*) from pg_locks where not granted and locktype = 'advisory' and objid::bigint = $1";
    while count(&beside, waits, lock).await == 0 {
        assert!(!claim.is_finished(), "the claim does not wait for the lock");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The claim goes on when the worker is stopped and its other leases are released.
    let unlock = async {
        while count(&beside, "select count(*) from worker where id = $1 and status = 'ready'", worker).await > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        beside.execute("select pg_advisory_unlock($1)", &[&lock]).await.unwrap();
    };
    tokio::join!(stop(&h, worker), unlock);
    claim.await.unwrap();
    assert_eq!(h.store.worker_held(worker).await.unwrap(), 0);
    let free = match claiming {
        Claiming::Messages => h.take(&queue, 9).await,
        Claiming::Key(_) => {
            h.store.claim_key(&queue.lanes, None, None, Duration::ZERO).await.unwrap().unwrap().messages
        }
    };
    assert_eq!(free.len(), 1, "the message is free again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_that_is_stopped_during_a_claim_keeps_no_lease() {
    for claiming in [Claiming::Messages, Claiming::Key("key_lease"), Claiming::Key("message")] {
        stop_during_a_claim(claiming, async |h, worker| drop(h.store.worker_shutdown(worker).await.unwrap())).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_that_is_reaped_during_a_claim_keeps_no_lease() {
    stop_during_a_claim(Claiming::Messages, async |h, worker| {
        h.advance(1_000);
        let (reaped, _) = h.store.worker_reap(Duration::from_secs(1), true).await.unwrap();
        assert_eq!(reaped, [worker]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_that_is_replaced_during_a_claim_keeps_no_lease() {
    let replace = async |h: &Harness, _| drop(h.store.worker_register("w", None).await.unwrap());
    stop_during_a_claim(Claiming::Messages, replace).await;
}
