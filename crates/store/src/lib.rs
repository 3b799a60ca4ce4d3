//! The kernel of Tenure: one store that leases work out of PostgreSQL, SQLite and Turso.
//!
//! A durable record is leased to one holder, who finishes it, gives it back, or loses it when the lease runs out.
//! Everything else in Tenure is a face of that one act.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> tenure_store::Result<()> {
//! use std::time::Duration;
//! use tenure_store::{Claim, NewMessage, Place, Settings, Store};
//!
//! // A PostgreSQL DSN, a file, or memory: the rest is the same.
//! let store = Store::connect("sqlite::memory:").await?;
//! store.install().await?;
//! let settings = Settings { max_attempts: Some(3), ..Settings::default() };
//! let queue = store.queue_create("thumbnails", settings).await?;
//! store.enqueue(&queue, None, vec![NewMessage::new("cat.jpg"), NewMessage::new("dog.jpg")]).await?;
//!
//! // Two messages, leased to us for the queue's lease time.
//! let messages = store.claim(Claim::from_queue(&queue, 10)).await?;
//! store.complete(&[messages[0].fence()]).await?;
//! store.retry(&[messages[1].fence()], None, Place::Keep).await?;
//!
//! // The second one comes again, as its second attempt.
//! let again = store.claim(Claim { wait: Duration::from_secs(1), ..Claim::from_queue(&queue, 10) }).await?;
//! assert_eq!((&again[0].payload[..], again[0].attempts), (&b"dog.jpg"[..], 2));
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//!
//! - Every claim carries a fence, every verb is compare-and-set on it, and every verb can be repeated.
//! - The database's clock decides every lease and every due time.
//! - An acknowledgement means a durable commit.
//! - Deliveries are counted, not failures: a message that kills its worker still reaches the dead letters.
//! - No payload is ever parsed: bytes in, bytes out.

mod calls;
mod clock;
mod combine;
#[cfg(feature = "conformance")]
pub mod conformance;
mod db;
mod dsn;
mod error;
mod flush;
mod migrate;
mod ops;
mod sql;
mod store;
pub mod text;
mod types;
mod value;
mod vitals;
mod wait;

pub use clock::Clock;
pub use dsn::{config_error_shown, dsn_backend, dsn_file, dsn_shown, dsn_with};
pub use error::{Error, Kind, Result};
pub use store::{Backend, Store};
pub use types::{
    Acked, Activity, Answer, ApiKey, Archived, Census, Claim, Clear, CopyProgress, CopyReport, Due, End, Enqueued,
    Event, ExecutionInfo, Extension, Fence, Heartbeat, History, HistoryEvent, Import, InstanceCensus, InstanceInfo,
    InstanceStats, KeptValue, KeyBatch, Known, LaneStats, Maintenance, Message, Micros, Namespace, NewApiKey,
    NewMessage, NewTurnMessage, NewUser, NewWork, Outcome, Place, Prune, Queue, Removal, Removed, Role, RoleBinding,
    Settings, State, Turn, TurnAck, TurnClaim, TurnMessage, TurnToken, Use, User, ValueChange, Work, WorkClaim,
    WorkFilter, WorkToken, Worker, WorkerStatus,
};
pub use vitals::{SIZES, Sizes, Vitals};
pub use wait::{Asked, Lease, Leased, Reply, Round, Topic, Waiters, Watch, deal};
