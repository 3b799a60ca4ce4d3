//! Workers, and what is known of them.

use chrono::{DateTime, Utc};
pub use tenure_store::WorkerStatus;

use super::time;

/// A registered process.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// # use tenure::*;
/// # let store = Store::connect(":memory:").await?;
/// # store.install().await?;
/// # let admin = Admin::on(&store);
/// # admin.create_queue("mail").await?;
/// # let producer = Producer::on(&store, "mail", "host-1", 1).await?;
/// # let consumer = Consumer::on(&store, "mail", "host-1", 2).await?;
/// let worker: WorkerInfo = store.workers().get(consumer.worker_id()).await?;
/// assert_eq!((worker.hostname.as_str(), worker.port, worker.status), ("host-1", 2, WorkerStatus::Ready));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerInfo {
    /// The number of this incarnation.
    pub id: i64,
    /// Where it runs.
    pub hostname: String,
    /// What tells it from others there.
    pub port: i32,
    /// The queue it works on, if it is one.
    pub queue_id: Option<i64>,
    /// When it registered.
    pub started_at: DateTime<Utc>,
    /// When it was last heard of.
    pub heartbeat_at: DateTime<Utc>,
    /// When it stopped.
    pub shutdown_at: Option<DateTime<Utc>>,
    /// What it is doing.
    pub status: WorkerStatus,
}

impl WorkerInfo {
    /// The name under which the kernel knows a worker: one incarnation at a time for each.
    pub(crate) fn name(role: &str, queue: &str, hostname: &str, port: i32) -> String {
        format!("{role}/{queue}@{hostname}:{port}")
    }
}

impl From<tenure_store::Worker> for WorkerInfo {
    fn from(worker: tenure_store::Worker) -> Self {
        let place = worker.name.rsplit_once('@').map_or(worker.name.as_str(), |(_, place)| place);
        let (hostname, port) = place.rsplit_once(':').unwrap_or((place, "0"));
        WorkerInfo {
            id: worker.id,
            hostname: hostname.to_owned(),
            port: port.parse().unwrap_or(0),
            queue_id: worker.queue,
            started_at: time(worker.started_at),
            heartbeat_at: time(worker.heartbeat_at),
            shutdown_at: worker.stopped_at.map(time),
            status: worker.status,
        }
    }
}

/// How the workers are, in numbers.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// # use tenure::*;
/// # let store = Store::connect(":memory:").await?;
/// # store.install().await?;
/// # let admin = Admin::on(&store);
/// # admin.create_queue("mail").await?;
/// # let producer = Producer::on(&store, "mail", "host-1", 1).await?;
/// # let consumer = Consumer::on(&store, "mail", "host-1", 2).await?;
/// let health: WorkerHealthStats = admin.worker_health_stats(30).await?;
/// assert_eq!((health.ready_workers, health.stale_workers), (2, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerHealthStats {
    /// All of them.
    pub total_workers: i64,
    /// Ready, stale ones included.
    pub ready_workers: i64,
    /// Suspended, stale ones included.
    pub suspended_workers: i64,
    /// Stopped.
    pub stopped_workers: i64,
    /// Not stopped, but silent for longer than they should be.
    pub stale_workers: i64,
}

/// What [`Admin::purge_stale_workers`](crate::Admin::purge_stale_workers) did.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// # use tenure::*;
/// # let store = Store::connect(":memory:").await?;
/// # store.install().await?;
/// # let admin = Admin::on(&store);
/// # admin.create_queue("mail").await?;
/// # let producer = Producer::on(&store, "mail", "host-1", 1).await?;
/// # let consumer = Consumer::on(&store, "mail", "host-1", 2).await?;
/// let purged: WorkerPurgeResult = admin.purge_stale_workers(30).await?;
/// assert_eq!((purged.workers_purged, purged.messages_released), (0, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerPurgeResult {
    /// Workers that were stopped, or had been long enough to be forgotten.
    pub workers_purged: u64,
    /// Messages that are free again.
    pub messages_released: u64,
    /// The workers that were stopped.
    pub worker_ids: Vec<i64>,
}
