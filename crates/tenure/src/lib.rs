//! Durable queues in the database you already have: an embedded SQLite file by default, PostgreSQL to scale, Turso too,
//! behind one API chosen by a connection string.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> tenure::Result<()> {
//! use std::time::Duration;
//! use tenure::{Admin, Consumer, Delivery, Producer, Store};
//!
//! // `sqlite:jobs.db`, `postgres://…`: the rest is the same.
//! let store = Store::connect(":memory:").await?;
//! store.install().await?;
//! let admin = Admin::on(&store);
//! admin.get_or_create_queue("mail").await?;
//!
//! let producer = Producer::on(&store, "mail", "host-1", 1).await?;
//! producer.enqueue("hello").await?;
//!
//! let consumer = Consumer::on(&store, "mail", "host-1", 2).await?;
//! async fn handle(mail: Delivery) -> tenure::Result<()> {
//!     println!("{}", mail.json::<String>()?);
//!     Ok(())
//! }
//! // `tokio::signal::ctrl_c()` in a program that runs until it is stopped.
//! let done = async {
//!     while admin.get_queue_metrics("mail").await?.total_messages > 0 {
//!         tokio::time::sleep(Duration::from_millis(20)).await;
//!     }
//!     Ok::<_, tenure::Error>(())
//! };
//! let summary = consumer.run(handle).until(done).await?;
//! assert_eq!(summary.completed, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # The life of a message
//!
//! A message is *pending* until a consumer leases it, or *delayed* before that. Under its lease it is *locked*: no other
//! consumer gets it. Its consumer completes it, or gives it back, or dies, and then the lease runs out and it is delivered
//! again. After the queue's number of attempts it is *dead*, and waits in the archive to be [replayed](Admin::replay_dead).
//! Delivery is at least once: make handlers so that doing the same twice does no harm, or complete the message
//! [in the transaction](Consumer::complete_in_postgres) of its own work, and it is exactly once.
//!
//! # Which part does what
//!
//! - [`Admin`]: tables, queues, dead letters, workers, numbers.
//! - [`Producer`]: enqueue, now or later, one or many, in your own transaction.
//! - [`Consumer`]: [`run`](Consumer::run) a handler, or lease and finish by hand.
//! - [`MessageQueue`]: messages of one routing key together, in order, one holder at a time.
//! - [`Store`]: the connection that they share, and the tables behind it.
//!
//! # SQL, from any language
//!
//! On PostgreSQL `select tenure.enqueue('mail', 'hello')` and `select tenure.complete(id, attempt)` do the same in any
//! transaction of any driver; the guide's chapter on the library lists their arguments. `enqueue` says `text` or `json` in
//! [`encoding`](QueueMessage::encoding) unless the caller does.
//!
//! # Features, and the crates whose types are in this API
//!
//! | feature | what it adds |
//! |---|---|
//! | `sqlite` (default) | SQLite, compiled in; `enqueue_in_sqlite` and `complete_in_sqlite` for transactions of `rusqlite` |
//! | `turso` | the embedded Turso engine |
//! | `sqlx` | `enqueue_in_sqlx` and `complete_in_sqlx` for transactions of `sqlx` 0.9 on PostgreSQL |
//!
//! A transaction or a time must come from the same version of its crate as this library uses, so these crates are re-exported:
//! [`tokio_postgres`], [`rusqlite`], [`sqlx_postgres`] (its `PgConnection` is the one of `sqlx` 0.9), [`chrono`], [`bytes`],
//! [`serde_json`] and [`tokio_util`]. A program that depends on one of them itself can use its own, if the versions agree.
//!
//! ```
//! use tenure::chrono::{TimeDelta, Utc};
//! let tomorrow = tenure::EnqueueOptions::default().at(Utc::now() + TimeDelta::days(1));
//! ```
//!
//! # What it tells
//!
//! Every verb is a `tracing` span and counts in `metrics`: `tenure_operations_total`, `tenure_operation_seconds` and
//! `tenure_messages_total`, by queue. No payload and no DSN is in any of them.

/// The README's program runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The program of the guide's chapter "library" too.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/library.md")]
struct Guide;

mod admin;
mod config;
mod consumer;
mod error;
mod observe;
mod payload;
mod producer;
mod routed;
mod run;
#[cfg(feature = "sqlx")]
mod sqlx;
mod store;
mod tables;
mod types;
mod verb;
mod worker;

/// Payloads of bytes: [`Payload::bytes`], [`Producer::enqueue_bytes`].
pub use bytes;
/// Times: [`EnqueueOptions::at`], [`QueueMessage::vt`], [`Span`].
pub use chrono;
/// Transactions on SQLite files: [`Producer::enqueue_in_sqlite`], [`Consumer::complete_in_sqlite`].
#[cfg(feature = "sqlite")]
pub use rusqlite;
/// Payloads as JSON values, and why one is not JSON: [`Payload::value`], [`Error::Serialization`].
pub use serde_json;
/// Transactions of sqlx on PostgreSQL: [`Producer::enqueue_in_sqlx`], [`Consumer::complete_in_sqlx`].
#[cfg(feature = "sqlx")]
pub use sqlx_postgres;
/// Transactions on PostgreSQL: [`Producer::enqueue_in_postgres`], [`Consumer::complete_in_postgres`].
pub use tokio_postgres;
/// The token by which a handler learns that its lease is lost: [`Delivery::lease_lost`].
pub use tokio_util;

pub use admin::Admin;
pub use config::Config;
pub use consumer::{Consumer, Lease};
pub use error::{Error, Result};
pub use payload::{Payload, PayloadValidator, ValidationConfig};
pub use producer::{EnqueueOptions, Producer};
pub use routed::{LockToken, MessageBatch, MessageQueue};
pub use run::{Delivery, Outcome, RetryPolicy, Run, Stop, Summary};
pub use store::Store;
pub use tables::{ArchiveTable, MessageTable, QueueTable, WorkerTable};
/// What kind of error the database answered with: [`Error::Store`].
pub use tenure_store::Kind;
pub use tenure_store::Settings;
pub use types::{
    ArchiveCursor, ArchivedMessage, ConcurrencyModel, Disposition, QueueInfo, QueueMessage, QueueMetrics, Span,
    SystemStats, WorkerHealthStats, WorkerInfo, WorkerPurgeResult, WorkerStatus,
};
