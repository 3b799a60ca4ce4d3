//! What every verb tells `tracing` and `metrics`: its name, its queue, how long it took and how it ended. Never a
//! payload, never a DSN.
//!
//! `tenure_operations_total` and `tenure_operation_seconds` carry `operation`, `queue` and `backend`; the counter also
//! `result` (`ok`, `retryable` or `error`). `tenure_messages_total` carries `queue` and `event` (`enqueued`, `delivered`,
//! `completed`, `retried`, `snoozed`, `released`, `buried`, `lost`).

use std::future::Future;
use std::time::Instant;

use tracing::Instrument as _;

use crate::error::Result;

/// Whose verb it is.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    pub(crate) backend: &'static str,
    pub(crate) queue: String,
}

impl Observer {
    pub(crate) async fn watch<T>(&self, operation: &'static str, act: impl Future<Output = Result<T>>) -> Result<T> {
        let started = Instant::now();
        let span = tracing::debug_span!("tenure", operation, queue = %self.queue, backend = self.backend);
        let result = act.instrument(span).await;
        let ended = match &result {
            Ok(_) => "ok",
            Err(error) if error.is_retryable() => "retryable",
            Err(_) => "error",
        };
        let queue = || self.queue.clone();
        metrics::counter!(
            "tenure_operations_total",
            "operation" => operation, "queue" => queue(), "backend" => self.backend, "result" => ended
        )
        .increment(1);
        metrics::histogram!(
            "tenure_operation_seconds", "operation" => operation, "queue" => queue(), "backend" => self.backend
        )
        .record(started.elapsed().as_secs_f64());
        result
    }

    pub(crate) fn count(&self, event: &'static str, messages: usize) {
        if messages > 0 {
            metrics::counter!("tenure_messages_total", "queue" => self.queue.clone(), "event" => event)
                .increment(messages as u64);
        }
    }
}
