//! Waiting for leases: callers, wake-ups, deadlines, and leases whose caller has gone.
//!
//! A *topic* is something that callers lease from: messages of some lanes, keys of some lanes, turns, activities; in the server,
//! a queue over several stores. All wait in the same way:
//!
//! ```text
//!  caller ──▶ Waiters ──▶ look ──▶ a Lease for some callers ──▶ caller
//!              ▲   │       (one statement for all of them)        │ gone: the Lease releases itself, uncounted
//!              │   └─ park: rest until a deadline, a poll, or
//!              └───── a wake-up: this process made something ready, or another one did (NOTIFY, a SQLite commit)
//! ```
//!
//! `waiters.rs` has the loop, `lease.rs` the guard, `hub.rs` the wake-ups and `news.rs` what processes tell each other.
//! Each topic has a file: `messages.rs`, `keys.rs`, `turns.rs`, `work.rs`.

pub(crate) mod cursor;
pub(crate) mod hub;
pub(crate) mod keys;
pub(crate) mod lease;
pub(crate) mod messages;
pub(crate) mod news;
mod offer;
pub(crate) mod prefetch;
pub(crate) mod times;
pub(crate) mod turns;
pub(crate) mod waiters;
mod watch;
pub(crate) mod work;

pub use lease::{Lease, Leased};
pub use messages::deal;
pub use waiters::{Asked, Reply, Round, Topic, Waiters};
pub use watch::Watch;
