//! A registered process: it says that it lives as long as it does, whatever its handlers are doing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_store::Heartbeat;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::store::Store;
use crate::types::WorkerInfo;

/// The worker behind a producer or a consumer.
#[derive(Debug)]
pub(crate) struct Worker {
    store: Store,
    pub(crate) id: i64,
    stopped: Arc<AtomicBool>,
    /// Cancelled when the worker turns out to be stopped.
    pub(crate) fenced: CancellationToken,
    heartbeat: JoinHandle<()>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.heartbeat.abort();
    }
}

impl Worker {
    pub(crate) fn start(store: &Store, info: &WorkerInfo) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let fenced = CancellationToken::new();
        let heartbeat = tokio::spawn(beat(store.clone(), info.id, stopped.clone(), fenced.clone()));
        Worker { store: store.clone(), id: info.id, stopped, fenced, heartbeat }
    }

    /// An error once the worker is known to be stopped.
    pub(crate) fn check(&self) -> Result<()> {
        match self.stopped.load(Ordering::Relaxed) {
            true => Err(Error::WorkerStopped { id: self.id }),
            false => Ok(()),
        }
    }

    /// What a claim of this worker has said: that the worker was stopped, by number, or something else.
    pub(crate) fn judge(&self, error: tenure_store::Error) -> Error {
        if error.kind() == tenure_store::Kind::WorkerStopped {
            self.stopped.store(true, Ordering::Relaxed);
            self.fenced.cancel();
        }
        Error::of_worker(self.id, error)
    }

    pub(crate) async fn shutdown(&self) -> Result<()> {
        self.store.workers().shutdown(self.id).await?;
        self.stopped.store(true, Ordering::Relaxed);
        self.fenced.cancel();
        Ok(())
    }
}

async fn beat(store: Store, id: i64, stopped: Arc<AtomicBool>, fenced: CancellationToken) {
    let mut ticks = tokio::time::interval(store.config.heartbeat_interval());
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first tick is at once, and registering was a sign of life.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        match store.kernel.worker_heartbeat(&[id]).await {
            Ok(answers) if answers[0] == Heartbeat::Alive => {}
            Ok(_) => {
                tracing::warn!(worker = id, "this worker was stopped: its leases belong to others now");
                stopped.store(true, Ordering::Relaxed);
                fenced.cancel();
                return;
            }
            Err(error) => tracing::warn!(worker = id, %error, "a heartbeat was lost"),
        }
    }
}
