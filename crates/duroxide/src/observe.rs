//! What every operation tells `tracing` and `metrics`: its name, its instance (in spans only), how long it took and how it
//! failed. Never a payload, never a DSN.
//!
//! `tenure_duroxide_operation_seconds` (histogram) and `tenure_duroxide_errors_total` carry `operation`: `fetch`, `ack`,
//! `abandon`, `renew`, `read`, `enqueue`, `dequeue_worker`, `ack_worker`, `abandon_worker`, `renew_worker`, `sessions`,
//! `status`, `values`, `admin`; the counter also `kind`. `tenure_duroxide_retries_total` counts what was repeated.
//! A fetch is measured without the time it waited for work.

use std::future::Future;
use std::time::{Duration, Instant};

use duroxide::providers::ProviderError;
use tenure_store::{Error, Kind, Result};
use tracing::Instrument as _;

/// Runs an operation under a span and counts it.
pub(crate) async fn observe<T>(
    operation: &'static str,
    instance: &str,
    act: impl Future<Output = Result<T>>,
) -> Result<T, ProviderError> {
    let started = Instant::now();
    let span = tracing::debug_span!("tenure_duroxide", operation, instance);
    let result = act.instrument(span).await;
    took(operation, started.elapsed());
    result.map_err(|error| failed(operation, &error))
}

/// How long an operation took.
pub(crate) fn took(operation: &'static str, time: Duration) {
    metrics::histogram!("tenure_duroxide_operation_seconds", "operation" => operation).record(time.as_secs_f64());
}

/// The kernel's error in duroxide's words: weather may be waited out, everything else is for good.
pub(crate) fn failed(operation: &'static str, error: &Error) -> ProviderError {
    let kind = format!("{:?}", error.kind());
    metrics::counter!("tenure_duroxide_errors_total", "operation" => operation, "kind" => kind).increment(1);
    tracing::debug!(operation, ?error, "an operation failed");
    if error.is_retryable() || error.kind() == Kind::Locked {
        ProviderError::retryable(operation, error.to_string())
    } else {
        ProviderError::permanent(operation, error.to_string())
    }
}
