//! Noise against the router, inside this process: random and damaged bodies, headers, methods and paths for every RPC,
//! in both encodings, with authorisation off and on.
//!
//! What must hold, whatever is sent: the status is one of the protocol and never 500; the answer is a message in one of
//! the two encodings, and a refusal is a Reply that repeats the status; nothing but a lease waits; and when it is over
//! the service still carries a message from its producer to its consumer.
//!
//! A run follows from one number: `TENURE_FUZZ_SEED` repeats it (up to ids, which are random, and times), and
//! `TENURE_FUZZ_CALLS` makes it longer. PostgreSQL gets its share when `TENURE_TEST_POSTGRES` names a server, as
//! `cargo xtask test` sees to.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "fuzz/body.rs"]
mod body;
#[path = "fuzz/caller.rs"]
mod caller;
#[path = "fuzz/harm.rs"]
mod harm;
#[path = "fuzz/noise.rs"]
mod noise;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value as Json, json};
use tokio::time::timeout;

use caller::Caller;
use noise::{Noise, Shot};

const SEED: u64 = 20_260_518;
/// All calls to SQLite together; PostgreSQL gets a fifth of that on top.
const CALLS: u64 = 20_000;
/// Nothing but a lease may take longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// A lease whose time-out was spoilt may wait for a quarter of an hour. Going away before is a test of its own.
const PATIENCE_OF_LEASES: Duration = Duration::from_millis(250);
const LEASE: &str = "/v1/queue.lease";

static NEXT: AtomicUsize = AtomicUsize::new(0);

fn setting(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{name} is '{text}': give a number"))
}

fn seed() -> u64 {
    setting("TENURE_FUZZ_SEED", SEED)
}

const SQLITE: &str = "sqlite::memory:";

/// Tables of our own on the PostgreSQL server that `cargo xtask test` starts; none without it.
fn postgres() -> Option<String> {
    let dsn = std::env::var("TENURE_TEST_POSTGRES").ok()?;
    let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    Some(format!("{dsn}?schema=fuzz_{process}_{number}&pool_size=5"))
}

/// Every database that there is.
fn stores() -> Vec<String> {
    std::iter::once(SQLITE.to_owned()).chain(postgres()).collect()
}

/// Every RPC, as the service itself describes them.
fn paths() -> Vec<String> {
    let document: Json = serde_json::from_str(&tenure_server::document_text()).unwrap();
    let paths = document["paths"].as_object().unwrap().iter();
    paths.filter(|(_, methods)| methods.get("post").is_some()).map(|(path, _)| path.clone()).collect()
}

/// What calls are about, and a key of somebody who may do nothing.
async fn prepare(caller: &Caller) -> String {
    for name in ["n0", "n1"] {
        caller.done("namespaces.create", &json!({ "name": name })).await;
    }
    for name in ["q0", "q1"] {
        caller.create_queue(name).await;
    }
    let user = caller.done("users.create", &json!({ "username": "stranger" })).await;
    let key = caller.done("apikeys.create", &json!({ "user_id": user["id"] })).await;
    key["key"].as_str().unwrap().to_owned()
}

async fn storm(dsn: &str, auth: bool, calls: u64) {
    let caller = Caller::start(dsn, auth).await;
    let key = prepare(&caller).await;
    let (seed, paths) = (seed(), paths());
    assert!(paths.len() >= 33, "the description has lost RPCs: {paths:?}");
    let mut noise = Noise::new(seed, Some(key));
    for path in &paths {
        // Whoever adds an RPC is told here to teach it to this test.
        let shot = noise.valid(path);
        shoot(&caller, &mut noise, &shot, &format!("the first call of seed {seed}")).await;
    }
    for n in 0..calls {
        let shot = noise.shot(&paths);
        shoot(&caller, &mut noise, &shot, &format!("call {n}, to be repeated with TENURE_FUZZ_SEED={seed}")).await;
    }
    caller.round_trip().await;
    caller.stop().await;
}

async fn shoot(caller: &Caller, noise: &mut Noise, shot: &Shot, which: &str) {
    let shown = || {
        let Shot { method, path, headers, body, arrival } = shot;
        let part = body[..body.len().min(1000)].escape_ascii();
        format!("{which}: {method} {path} {headers:?}, {} bytes, {arrival:?}: {part}", body.len())
    };
    let is_lease = shot.path.starts_with(LEASE);
    let patience = if is_lease { PATIENCE_OF_LEASES } else { PATIENCE };
    match timeout(patience, caller.send(shot.request())).await {
        Ok(answer) => {
            assert_eq!(answer.complaint(), None, "{answer:?}\n{}", shown());
            noise.learn(&answer);
        }
        Err(_) => assert!(is_lease, "no answer in {patience:?}\n{}", shown()),
    }
}

fn calls() -> u64 {
    setting("TENURE_FUZZ_CALLS", CALLS)
}

#[tokio::test]
async fn whatever_is_sent_is_answered_as_the_protocol_says() {
    storm(SQLITE, false, calls() / 2).await;
}

#[tokio::test]
async fn whatever_is_sent_is_answered_as_the_protocol_says_when_callers_need_rights() {
    storm(SQLITE, true, calls() / 2).await;
}

#[tokio::test]
async fn whatever_is_sent_is_answered_as_the_protocol_says_out_of_postgresql() {
    for auth in [false, true] {
        if let Some(dsn) = postgres() {
            storm(&dsn, auth, calls() / 10).await;
        }
    }
}
