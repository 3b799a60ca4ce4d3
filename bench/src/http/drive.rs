//! The loops of both sides: as many callers as there are, each with one call at a time, until the time is up or the
//! queue is drained.
//!
//! Invariant: a rate counts from the start to the last thing that was done. What callers then wait for in vain is not
//! part of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::Result;
use crate::http::Place;
use crate::http::server::cpu;
use crate::load::{Measured, Meter};

/// How long each act is tried before anything is measured: connections are opened, statements prepared.
const WARM_UP: f64 = 0.2;

/// Somebody who produces and consumes: over HTTP, or straight into the kernel.
pub(crate) trait Caller: Send + 'static {
    /// What ends a lease.
    type Lease: Send;

    /// Produces one call's worth of messages.
    fn produce(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Leases at most one call's worth: how many, and what ends them. None: nothing has come for a while.
    fn lease(&mut self) -> impl Future<Output = Result<Option<(usize, Self::Lease)>>> + Send;

    /// Ends them: they are done.
    fn complete(&mut self, leased: Self::Lease) -> impl Future<Output = Result<()>> + Send;
}

#[derive(Clone, Copy, PartialEq)]
enum Act {
    Produce,
    Drain,
}

/// Callers, and what they have left in the queue.
pub(crate) struct Load<C> {
    callers: Vec<C>,
    /// Messages in a produce.
    items: usize,
    backlog: u64,
    /// The process that has the kernel; none: it is this one.
    server: Option<u32>,
}

impl<C: Caller> Load<C> {
    pub(crate) fn new(callers: Vec<C>, items: usize, server: Option<u32>) -> Self {
        Load { callers, items, backlog: 0, server }
    }

    /// Produces, then drains what was produced.
    pub(crate) async fn measure(mut self, place: &Place, seconds: f64) -> Result<[Measured; 2]> {
        self.run(Act::Produce, WARM_UP).await?;
        self.run(Act::Drain, WARM_UP).await?;
        place.settle().await?;
        let produced = self.run(Act::Produce, seconds).await?;
        place.settle().await?;
        let drained = self.run(Act::Drain, seconds).await?;
        Ok([produced, drained])
    }

    async fn run(&mut self, act: Act, seconds: f64) -> Result<Measured> {
        let enough = if act == Act::Drain { self.backlog } else { u64::MAX };
        let before = self.used()?;
        let meter = Meter::new(Duration::from_secs_f64(seconds), enough);
        let mut tasks = JoinSet::new();
        for caller in std::mem::take(&mut self.callers) {
            tasks.spawn(call(caller, act, self.items, meter.clone()));
        }
        let mut last = Duration::ZERO;
        while let Some(ended) = tasks.join_next().await {
            let (caller, at) = ended??;
            last = last.max(at);
            self.callers.push(caller);
        }
        let after = self.used()?;
        let count = meter.count();
        if count == 0 {
            return Err("nothing was produced, or nothing was drained: there is nothing to compare".into());
        }
        match act {
            Act::Produce => self.backlog += count,
            Act::Drain => self.backlog = self.backlog.saturating_sub(count),
        }
        let each = |seconds: f64| seconds * 1e6 / count as f64;
        Ok(Measured {
            rate: count as f64 / last.as_secs_f64(),
            cpu: each(after.0 - before.0),
            load_cpu: each(after.1 - before.1),
            ..meter.measured()
        })
    }

    /// Seconds of CPU so far: of the process that has the kernel, and of the load if that is another one.
    fn used(&self) -> Result<(f64, f64)> {
        let own = cpu(std::process::id())?;
        Ok(match self.server {
            Some(server) => (cpu(server)?, own),
            None => (own, 0.0),
        })
    }
}

/// One caller's part. Returns it, and when it last got something done.
async fn call<C: Caller>(mut caller: C, act: Act, items: usize, meter: Arc<Meter>) -> Result<(C, Duration)> {
    let mut last = Duration::ZERO;
    while meter.running() {
        let count = match act {
            Act::Produce => produce(&mut caller, items, &meter).await?,
            Act::Drain => drain(&mut caller, &meter).await?,
        };
        if count == 0 {
            break;
        }
        meter.done(count);
        last = meter.elapsed();
    }
    Ok((caller, last))
}

async fn produce<C: Caller>(caller: &mut C, items: usize, meter: &Meter) -> Result<usize> {
    let began = Instant::now();
    caller.produce().await?;
    meter.latency(began.elapsed().as_micros() as u64);
    Ok(items)
}

/// Leases and completes: two calls, unless the first brings nothing.
async fn drain<C: Caller>(caller: &mut C, meter: &Meter) -> Result<usize> {
    let began = Instant::now();
    let Some((count, leased)) = caller.lease().await? else { return Ok(0) };
    let leasing = began.elapsed();
    caller.complete(leased).await?;
    meter.latency(leasing.as_micros() as u64);
    meter.latency((began.elapsed() - leasing).as_micros() as u64);
    Ok(count)
}
