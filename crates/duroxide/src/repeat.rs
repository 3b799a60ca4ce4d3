//! Repeats what can be repeated while the database is away.

use std::time::Duration;

use rand::Rng as _;
use tenure_store::Result;
use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(20);
const MOST: Duration = Duration::from_millis(500);

/// How long calls are repeated that hold no lease: as long as a restart or a fail-over usually takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The end of a wait or of a lease, which may be longer than the clock can count.
pub(crate) fn after(from: Instant, wait: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    from + wait.min(YEAR)
}

/// Runs an act until it succeeds, is refused for good, or the time is up; at least once. Also tells whether an earlier try
/// may have been committed although its answer was lost.
pub(crate) async fn repeat<T, F: Future<Output = Result<T>> + Send>(
    operation: &'static str,
    until: Instant,
    mut act: impl FnMut() -> F + Send,
) -> Result<(T, bool)> {
    let mut ambiguous = false;
    let mut pause = FIRST;
    loop {
        match act().await {
            Ok(value) => return Ok((value, ambiguous)),
            Err(error) if error.is_retryable() && Instant::now() + pause < until => {
                ambiguous |= error.is_ambiguous();
                tracing::debug!(operation, %error, "the database was away: trying again");
                metrics::counter!("tenure_duroxide_retries_total", "operation" => operation).increment(1);
                let jitter = rand::rng().random_range(0.75..1.25);
                tokio::time::sleep(pause.mul_f64(jitter)).await;
                pause = (pause * 2).min(MOST);
            }
            Err(error) => return Err(error),
        }
    }
}
