//! Workers, and what a heartbeat learns.

use super::Micros;

/// A registered process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// The number of this incarnation: a process that registers again under the same name gets a new one.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// The queue it works on, if it is one.
    pub queue: Option<i64>,
    /// What it is doing.
    pub status: WorkerStatus,
    /// When it registered.
    pub started_at: Micros,
    /// When it was last heard of.
    pub heartbeat_at: Micros,
    /// When it stopped.
    pub stopped_at: Option<Micros>,
}

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerStatus {
    /// Working, or ready to.
    Ready,
    /// Told to take nothing new.
    Suspended,
    /// Gone: it shut down, was replaced by a new incarnation, or was declared dead.
    Stopped,
}

impl WorkerStatus {
    pub(crate) fn name(self) -> &'static str {
        match self {
            WorkerStatus::Ready => "ready",
            WorkerStatus::Suspended => "suspended",
            WorkerStatus::Stopped => "stopped",
        }
    }
}

/// What a heartbeat tells the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heartbeat {
    /// Go on.
    Alive,
    /// Another incarnation, or an operator, has stopped you: your leases are no longer yours.
    Fenced,
    /// No worker has this number, and none ever had.
    Unknown,
}
