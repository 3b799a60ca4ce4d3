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
//! Admin::on(&store).get_or_create_queue("mail").await?;
//!
//! let producer = Producer::on(&store, "mail", "host-1", 1).await?;
//! producer.enqueue("hello").await?;
//!
//! let consumer = Consumer::on(&store, "mail", "host-1", 2).await?;
//! async fn handle(mail: Delivery) -> tenure::Result<()> {
//!     println!("{}", mail.json::<String>()?);
//!     Ok(())
//! }
//! let summary = consumer.run(handle).until(tokio::time::sleep(Duration::from_millis(200))).await?;
//! assert_eq!(summary.completed, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # The life of a message
//!
//! A message is *pending* until a consumer leases it, or *delayed* before that. Under its lease it is *locked*: nobody
//! else gets it. Its consumer completes it, or gives it back, or dies, and then the lease runs out and it is delivered
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
//! # What it tells
//!
//! Every verb is a `tracing` span and counts in `metrics`: `tenure_operations_total`, `tenure_operation_seconds` and
//! `tenure_messages_total`, by queue. No payload and no DSN is in any of them.

/// The README's program, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

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

pub use admin::Admin;
pub use config::Config;
pub use consumer::{Consumer, Lease};
pub use error::{Error, Result};
pub use payload::{Payload, PayloadValidator, ValidationConfig};
pub use producer::{EnqueueOptions, Producer};
pub use routed::{LockToken, MessageBatch, MessageQueue};
pub use run::{Delivery, Outcome, RetryPolicy, Run, Summary};
pub use store::Store;
pub use tables::{ArchiveTable, MessageTable, QueueTable, WorkerTable};
pub use tenure_store::Settings;
pub use types::{
    ArchiveCursor, ArchivedMessage, ConcurrencyModel, Disposition, QueueInfo, QueueMessage, QueueMetrics, Span,
    SystemStats, WorkerHealthStats, WorkerInfo, WorkerPurgeResult, WorkerStatus,
};
