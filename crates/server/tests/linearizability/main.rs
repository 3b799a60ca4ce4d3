//! Is a queue of the server what it promises to be: first in, first out, with leases, whatever is called at the same
//! time?
//!
//! Every seed is a run on a queue of its own: three or four clients produce, lease, complete and retry at the same
//! time, and now and then one moves the server's clock past the end of all leases. Each call is recorded with its
//! arguments, its answer, and when it began and ended. Then an order of the calls is looked for that agrees with the
//! model (`model.rs`) and with time: whoever ended before another began comes before it. Without such an order the run
//! has shown a defect, and its seed and its history are printed. At the end of a run every lease that is left is
//! completed and the queue is drained, so that nothing that was lost can hide.
//!
//! # What a call is in the model
//!
//! A call is one or more steps. Each happens at one instant between the call's beginning and its end, in this order,
//! and steps of other calls may come between them:
//!
//! - produce: its items are appended, all at once.
//! - lease: each item is *taken*, one after the other, and each is the first in line when it is. So it is with the
//!   server, which takes for all waiting leases at once and deals one item at a time. A lease that has room left then
//!   *finds nothing* more, and one that is answered empty has found nothing: at one instant of its wait, nothing was
//!   ready.
//! - complete, retry: id by id, as the protocol has it, until one is not leased. That one is named in the refusal.
//! - expire (the clock was moved): every lease ends, and the items go to the tail, in the order in which they stood.
//!
//! Partitions are queues of their own and are checked one by one. Where a produce went is learned from whoever leases
//! it. A call whose answer was lost may have done any of its first steps, or none; only a lease must be answered.
//!
//! # Where many write at the same time
//!
//! SQLite has one writer, and is held to exactly this; nobody leases there while the clock is moved, because a lease that
//! is granted as of the old time ends a moment later than the others. On PostgreSQL a message draws its place in line before its
//! transaction commits, and expired leases are met by whoever comes first. Three things are therefore allowed there, and
//! nothing else:
//!
//! - Calls that put items into line at the same time may have drawn their places in any order, and an item that has
//!   drawn its place can appear late: in front of others, some of which may have been taken already. Calls that follow
//!   each other never change places.
//! - Leases end one by one while the clock is moved, and go to the tail in any order. So may a lease that was granted
//!   while the clock was being set: whoever granted it may have read the clock before.
//! - Where two calls end the same lease at the same time, the slower one holds the message until it ends too: what the
//!   faster one gave back may be overtaken until then, and not longer.
//!
//! `TENURE_LINEARIZABILITY_SEEDS` and `TENURE_LINEARIZABILITY_FIRST` choose other seeds than 1 to 50.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod cases;
mod check;
mod client;
mod history;
mod model;
mod run;

use check::{UNDECIDED, check};
use client::Server;
use history::{Tally, table};
use model::Writers;

/// So many runs meet everything that can happen.
const MANY: u64 = 50;

#[test]
fn histories_on_sqlite_are_linearizable() {
    judge(&Server::on_sqlite(), Writers::One);
}

#[test]
fn histories_on_postgres_are_linearizable() {
    judge(&Server::on_postgres(), Writers::Many);
}

fn judge(server: &Server, writers: Writers) {
    let read = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = read("TENURE_LINEARIZABILITY_FIRST").unwrap_or(1);
    let end = first + read("TENURE_LINEARIZABILITY_SEEDS").unwrap_or(MANY);
    let mut tally = Tally::default();
    let mut undecided = 0;
    // One after the other: the clock that a run moves is the whole server's.
    for seed in first..end {
        let (history, partitions) = run::run(server, seed);
        match check(&history, partitions, writers) {
            Ok(()) => {}
            Err(why) if why.contains(UNDECIDED) => undecided += 1,
            Err(why) => panic!("seed {seed} is not linearizable\n{}\n{why}", table(&history)),
        }
        tally.add(&history);
    }
    assert!(undecided * 5 <= end - first, "{undecided} of {} histories have too many orders to try", end - first);
    println!("{tally:?}");
    if end - first >= MANY {
        tally.assert_worth();
    }
}
