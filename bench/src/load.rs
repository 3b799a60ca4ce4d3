//! What every measurement needs: payloads that carry their time, a stop watch, latencies.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;

/// Nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

/// About 100 bytes of JSON that begins with its own time.
pub(crate) fn payload(n: u64) -> String {
    format!(r#"{{"t":{:020},"n":{n:08},"pad":"0123456789abcdef0123456789abcdef0123456789abcdef0123"}}"#, now())
}

/// When a payload was made.
pub(crate) fn made_at(payload: &[u8]) -> u64 {
    std::str::from_utf8(&payload[5..25]).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// One measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    /// Per second.
    pub(crate) rate: f64,
    /// Milliseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Bytes of write-ahead log per message, where it was measured.
    pub(crate) wal: f64,
    /// Microseconds of CPU per message, where they were measured: of the process that has the kernel.
    pub(crate) cpu: f64,
    /// And of the process that only calls it.
    pub(crate) load_cpu: f64,
}

/// Counts what many tasks do, until it is told to stop or has counted enough.
pub(crate) struct Meter {
    started: Instant,
    limit: Duration,
    enough: u64,
    taken: AtomicU64,
    done: AtomicU64,
    stopped: AtomicBool,
    latencies: Mutex<Histogram<u64>>,
}

impl Meter {
    pub(crate) fn new(limit: Duration, enough: u64) -> Arc<Self> {
        let latencies = Mutex::new(Histogram::new(3).unwrap_or_else(|error| unreachable!("{error}")));
        Arc::new(Meter {
            started: Instant::now(),
            limit,
            enough,
            taken: 0.into(),
            done: 0.into(),
            stopped: false.into(),
            latencies,
        })
    }

    pub(crate) fn running(&self) -> bool {
        !self.stopped.load(Relaxed) && self.started.elapsed() < self.limit && self.done.load(Relaxed) < self.enough
    }

    /// The next number, for payloads and for pacing.
    pub(crate) fn next(&self) -> u64 {
        self.taken.fetch_add(1, Relaxed)
    }

    pub(crate) fn done(&self, count: usize) {
        self.done.fetch_add(count as u64, Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.done.load(Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    pub(crate) fn latency(&self, micros: u64) {
        let mut latencies = self.latencies.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if latencies.record(micros).is_err() {
            eprintln!("a latency of {micros} µs was not recorded");
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn measured(&self) -> Measured {
        let elapsed = self.started.elapsed().as_secs_f64();
        let latencies = self.latencies.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let quantile = |q| latencies.value_at_quantile(q) as f64 / 1000.0;
        let rate = self.count() as f64 / elapsed;
        Measured { rate, p50: quantile(0.5), p99: quantile(0.99), ..Measured::default() }
    }
}
