//! The queue server: leases over HTTP for every language, out of the database you already have.
//!
//! `tenure serve` is this crate with a process around it. To have it inside another axum program:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> tenure_store::Result<()> {
//! use tenure_server::{Options, router};
//! use tenure_store::Store;
//!
//! let store = Store::connect("sqlite::memory:").await?;
//! store.install().await?;
//! let app: axum::Router = axum::Router::new().nest("/queues", router(store, Options::default()));
//! # drop(app);
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//!
//! - The protocol is Querator's, to the letter: clients compare strings.
//! - Any number of processes may serve the same stores: the database alone decides who holds what.
//! - Nothing that matters is only in memory: a process can be killed at any time.
//! - Whoever has gone is handed nothing.

mod auth;
pub mod cli;
mod client;
pub mod config;
mod desk;
mod fault;
mod health;
#[cfg(feature = "test-hooks")]
mod hooks;
mod http;
mod lifecycle;
mod metrics;
mod openapi;
mod rpc;
pub mod serve;
mod service;
mod stores;
mod tls;
mod wire;

pub use openapi::document_text;
pub use service::{Options, Service};
pub use stores::StoreOptions;

/// A service on a store that is open already, as an axum router. Its options' stores are not used.
pub fn router(store: tenure_store::Store, options: Options) -> axum::Router {
    Service::on(store, options).router()
}
