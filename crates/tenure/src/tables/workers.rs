//! The workers.

use tenure_store::{Heartbeat, Kind};

use crate::error::{Error, Result};
use crate::store::Store;
use crate::types::{Span, WorkerHealthStats, WorkerInfo, WorkerStatus};

/// The workers.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// # let store = tenure::Store::connect(":memory:").await?;
/// # store.install().await?;
/// let worker = store.workers().register(None, "host-1", 8080).await?;
/// store.workers().heartbeat(worker.id).await?;
/// assert!(store.workers().is_healthy(worker.id, 30).await?);
/// store.workers().shutdown(worker.id).await?;
/// assert!(matches!(store.workers().heartbeat(worker.id).await, Err(tenure::Error::WorkerStopped { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct WorkerTable {
    pub(crate) store: Store,
}

impl WorkerTable {
    /// Its name in the database.
    pub fn table_name(&self) -> &'static str {
        "worker"
    }

    /// Registers a worker. An earlier incarnation in the same place is removed, and its leases are free.
    ///
    /// # Errors
    /// `ValidationFailed` for a hostname that cannot be.
    pub async fn register(&self, queue_id: Option<i64>, hostname: &str, port: i32) -> Result<WorkerInfo> {
        let queue = queue_id.map_or_else(|| "-".to_owned(), |queue| queue.to_string());
        self.register_as("worker", &queue, queue_id, hostname, port).await
    }

    pub(crate) async fn register_as(
        &self,
        role: &str,
        queue: &str,
        queue_id: Option<i64>,
        hostname: &str,
        port: i32,
    ) -> Result<WorkerInfo> {
        if hostname.trim().is_empty() {
            return Err(Error::invalid("the hostname is empty: say where this worker runs"));
        }
        let name = WorkerInfo::name(role, queue, hostname, port);
        Ok(self.store.kernel.worker_register(&name, queue_id).await?.into())
    }

    /// A worker by its number.
    ///
    /// # Errors
    /// `WorkerNotFound`.
    pub async fn get(&self, worker_id: i64) -> Result<WorkerInfo> {
        Ok(self.store.kernel.worker_get(worker_id).await.map_err(|error| named(worker_id, error))?.into())
    }

    /// What a worker is doing.
    ///
    /// # Errors
    /// `WorkerNotFound`.
    pub async fn get_status(&self, worker_id: i64) -> Result<WorkerStatus> {
        Ok(self.get(worker_id).await?.status)
    }

    /// Workers of one queue, or all.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn list(&self, queue_id: Option<i64>) -> Result<Vec<WorkerInfo>> {
        Ok(self.store.kernel.worker_list(queue_id, None).await?.into_iter().map(WorkerInfo::from).collect())
    }

    /// Says that a worker lives.
    ///
    /// # Errors
    /// `WorkerStopped` when it was stopped: its leases are no longer its own. `WorkerNotFound`.
    pub async fn heartbeat(&self, worker_id: i64) -> Result<()> {
        match self.store.kernel.worker_heartbeat(&[worker_id]).await?[0] {
            Heartbeat::Alive => Ok(()),
            Heartbeat::Fenced => Err(Error::WorkerStopped { id: worker_id }),
            Heartbeat::Unknown => Err(Error::WorkerNotFound { id: worker_id }),
        }
    }

    /// Whether a worker is not stopped and was heard of within `max_age`; never with an age of zero.
    ///
    /// # Errors
    /// `WorkerNotFound`, or `ValidationFailed` for a negative age.
    pub async fn is_healthy(&self, worker_id: i64, max_age: impl Into<Span>) -> Result<bool> {
        let max_age = max_age.into().get("the age")?;
        let worker = self.get(worker_id).await?;
        let silent = self.store.kernel.worker_list(worker.queue_id, Some(max_age)).await?;
        Ok(worker.status != WorkerStatus::Stopped && silent.iter().all(|stale| stale.id != worker_id))
    }

    /// Ready to suspended: it is handed nothing until it is resumed.
    ///
    /// # Errors
    /// `InvalidStateTransition`, `WorkerNotFound`.
    pub async fn suspend(&self, worker_id: i64) -> Result<()> {
        let result = self.store.kernel.worker_suspend(worker_id).await;
        self.changed(worker_id, "suspended", result).await
    }

    /// Suspended to ready.
    ///
    /// # Errors
    /// `InvalidStateTransition`, `WorkerNotFound`.
    pub async fn resume(&self, worker_id: i64) -> Result<()> {
        let result = self.store.kernel.worker_resume(worker_id).await;
        self.changed(worker_id, "ready", result).await
    }

    /// Anything but stopped to stopped; its leases are free at once.
    ///
    /// # Errors
    /// `InvalidStateTransition`, `WorkerNotFound`.
    pub async fn shutdown(&self, worker_id: i64) -> Result<()> {
        let result = self.store.kernel.worker_shutdown(worker_id).await;
        self.changed(worker_id, "stopped", result).await
    }

    async fn changed(&self, id: i64, to: &str, result: tenure_store::Result<tenure_store::Worker>) -> Result<()> {
        match result {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == Kind::InvalidState => {
                let from = format!("{:?}", self.get_status(id).await?).to_lowercase();
                Err(Error::InvalidStateTransition { from, to: to.to_owned(), reason: error.to_string() })
            }
            Err(error) => Err(named(id, error)),
        }
    }

    /// How all workers are; one that is not stopped and was not heard of within `timeout` is stale.
    ///
    /// # Errors
    /// `ValidationFailed` for a negative time-out.
    pub async fn health_stats(&self, timeout: impl Into<Span>) -> Result<WorkerHealthStats> {
        let timeout = timeout.into().get("the time-out")?;
        let mut stats = WorkerHealthStats::default();
        for worker in self.store.kernel.worker_list(None, None).await? {
            stats.total_workers += 1;
            match worker.status {
                WorkerStatus::Ready => stats.ready_workers += 1,
                WorkerStatus::Suspended => stats.suspended_workers += 1,
                WorkerStatus::Stopped => stats.stopped_workers += 1,
            }
        }
        stats.stale_workers = self.store.kernel.worker_list(None, Some(timeout)).await?.len() as i64;
        Ok(stats)
    }
}

fn named(id: i64, error: tenure_store::Error) -> Error {
    match error.kind() {
        Kind::NotFound => Error::WorkerNotFound { id },
        _ => error.into(),
    }
}
