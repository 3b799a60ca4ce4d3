//! duroxide orchestrations on PostgreSQL and SQLite: a storage provider on the kernel of Tenure.
//!
//! A program changes one line: the provider it makes.
//!
//! ```no_run
//! # async fn run(activities: duroxide::runtime::registry::ActivityRegistry, orchestrations: duroxide::OrchestrationRegistry) -> tenure_store::Result<()> {
//! use std::sync::Arc;
//! use duroxide::runtime::Runtime;
//! use tenure_duroxide::TenureProvider;
//!
//! // Or "sqlite:orders.db".
//! let store = Arc::new(TenureProvider::new("postgres://app@localhost/app").await?);
//! let runtime = Runtime::start_with_store(store.clone(), activities, orchestrations).await;
//! let client = duroxide::Client::new(store);
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//!
//! - One round trip per operation on PostgreSQL, and one commit: a turn is acknowledged whole or not at all.
//! - An instance has one holder, an activity too; concurrent fetches take different ones.
//! - Leases begin when they are claimed, in the database's clock, to the microsecond (SQLite: millisecond).
//! - A fetch that finds nothing waits until its time is up, and is woken as soon as there is something.
//! - An outage of the database fails no orchestration: what can be repeated is repeated while its lease lasts, an
//!   acknowledgement recognises its own commit, and nothing is written under a lock whose acknowledgement was given up.
//! - Every text survives, NUL characters included.

mod admin;
mod cache;
mod config;
mod convert;
mod held;
mod observe;
mod provider;
mod repeat;
mod token;
mod told;
mod turn;

pub use config::{MigrationPolicy, ProviderConfig};
pub use provider::{PostgresProvider, TenureProvider};
pub use tenure_store::{Error, Kind};
