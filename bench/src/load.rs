//! What every measurement needs: payloads that carry their time, a stop watch, latencies.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::Result;
use crate::bare::finish;

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

    /// The time since a payload was made.
    pub(crate) fn since(&self, made_at: u64) {
        self.latency(now().saturating_sub(made_at) / 1000);
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

/// Producers and consumers side by side, each with one message at a time.
#[derive(Clone, Copy)]
pub(crate) struct Paced {
    pub(crate) producers: usize,
    pub(crate) consumers: usize,
    /// Messages a second; infinite: as fast as they can.
    pub(crate) rate: f64,
    pub(crate) seconds: f64,
}

impl Paced {
    /// The rate is that of consumed messages, the latency what consumers note. Paced messages are consumed to the last one, or
    /// for two seconds longer; what is produced without a pace is left.
    pub(crate) async fn run<P, C>(
        self,
        produce: impl Fn(u64) -> P + Clone + Send + Sync + 'static,
        consume: impl Fn(Arc<Meter>) -> C + Clone + Send + Sync + 'static,
    ) -> Result<Measured>
    where
        P: Future<Output = Result<()>> + Send,
        C: Future<Output = Result<()>> + Send,
    {
        let Paced { rate, seconds, .. } = self;
        let produced = Meter::new(Duration::from_secs_f64(seconds), u64::MAX);
        let consumed = Meter::new(Duration::from_secs_f64(seconds + 2.0), u64::MAX);
        let (mut producers, mut consumers) = (JoinSet::new(), JoinSet::new());
        for _ in 0..self.producers {
            let (meter, produce) = (produced.clone(), produce.clone());
            producers.spawn(async move {
                while meter.running() {
                    let n = meter.next();
                    let at = Duration::from_secs_f64(n as f64 / rate);
                    tokio::time::sleep(at.saturating_sub(meter.elapsed())).await;
                    produce(n).await?;
                    meter.done(1);
                }
                Result::Ok(())
            });
        }
        for _ in 0..self.consumers {
            let (meter, consume) = (consumed.clone(), consume.clone());
            consumers.spawn(async move {
                while meter.running() {
                    consume(meter.clone()).await?;
                }
                Result::Ok(())
            });
        }
        finish(producers).await?;
        let produced = produced.count();
        while rate.is_finite() && consumed.count() < produced && consumed.running() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        consumed.stop();
        let count = consumed.count();
        finish(consumers).await?;
        Ok(Measured { rate: count as f64 / seconds, ..consumed.measured() })
    }
}
