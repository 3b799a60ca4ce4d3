//! What a worker process is told, and how its calls are recorded.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_chaos::history::{Answer, Event, Item, Leased, Op, Recorder, micros};
use tokio_util::sync::CancellationToken;

use crate::Result;

/// Keeps completed messages; consumers lease them by hand.
pub(crate) const KEPT: &str = "kept";
/// Keeps nothing; consumers lease messages by hand.
pub(crate) const PLAIN: &str = "plain";
/// Keeps nothing; messages are handled by the run loop.
pub(crate) const LOOPED: &str = "looped";
/// Keeps completed messages; messages have keys.
pub(crate) const KEYED: &str = "keyed";
/// Served over HTTP, with one partition.
pub(crate) const WEB: &str = "web";
/// Served over HTTP, with three partitions.
pub(crate) const WIDE: &str = "wide";

/// How long a lease of these queues lasts.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// What a worker process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Enqueues with the library.
    Producer,
    /// Leases with the library, by hand.
    Hand,
    /// Runs handlers in the library's run loop.
    Runner,
    /// Produces and leases over HTTP.
    Http,
    /// Completes everything that is left, with the library.
    Drain,
    /// Completes everything that is left, over HTTP.
    HttpDrain,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Producer => "producer",
            Role::Hand => "hand",
            Role::Runner => "runner",
            Role::Http => "http",
            Role::Drain => "drain",
            Role::HttpDrain => "http-drain",
        }
    }
}

/// What a worker process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) role: Role,
    /// Its name in the history, which no other process has.
    pub(crate) process: String,
    /// Where the history is written.
    pub(crate) folder: PathBuf,
    /// The database, or the address of a server.
    pub(crate) place: String,
    /// The server process behind that address.
    pub(crate) server: Option<String>,
    pub(crate) seed: u64,
    /// How long a call of the library may take.
    pub(crate) limit: Duration,
}

/// A worker process: what it was told, its history, and whether it should go on.
pub(crate) struct Worker {
    pub(crate) job: Job,
    pub(crate) recorder: Recorder,
    pub(crate) stop: CancellationToken,
}

/// The error of a call that may have been carried out.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Worker {
    pub(crate) fn new(job: Job) -> Result<Arc<Self>> {
        let recorder = Recorder::open(&job.folder, &job.process)?;
        Ok(Arc::new(Worker { job, recorder, stop: CancellationToken::new() }))
    }

    pub(crate) fn goes_on(&self) -> bool {
        !self.stop.is_cancelled()
    }

    /// Random numbers for one task, which depend on the seed, the process and the task.
    pub(crate) fn random(&self, task: u64) -> rand::rngs::StdRng {
        let name = self.job.process.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        rand::SeedableRng::seed_from_u64(self.job.seed ^ name ^ task.wrapping_mul(0x9e37_79b9))
    }

    /// Waits, unless the process is to stop.
    pub(crate) async fn rest(&self, rest: Duration) {
        tokio::select! {
            () = tokio::time::sleep(rest) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Carries a call out, and records it with its answer.
    pub(crate) async fn call<T, E: Into<Failure>>(
        &self,
        op: Op,
        within: Duration,
        act: impl Future<Output = std::result::Result<T, E>>,
        answer: impl FnOnce(&T) -> Answer,
    ) -> Option<T> {
        let call = self.recorder.number();
        let (within, server) = (micros(within), self.job.server.clone());
        self.recorder.write(Event::Call { call, within, server, op });
        let result = act.await.map_err(Into::into);
        let (value, result) = match result {
            Ok(value) => {
                let result = answer(&value);
                (Some(value), result)
            }
            Err(error) => (None, Answer::Failed(text(&*error))),
        };
        self.recorder.write(Event::Answer { call, result });
        value
    }

    /// A message under a lease with a number of its own.
    pub(crate) fn leased(&self, message: &tenure::QueueMessage) -> Leased {
        let from = message.dequeued_at.map_or(0, |at| at.timestamp_micros());
        Leased {
            lease: self.recorder.number(),
            uid: message
                .json::<Item>()
                .map_or_else(|_| format!("unreadable payload of {}", message.id), |item| item.uid),
            id: Some(message.id),
            attempt: message.read_ct.into(),
            from,
            until: Some(message.vt.timestamp_micros()),
        }
    }
}

/// An error with its causes.
fn text(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
