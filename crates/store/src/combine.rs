//! Merges concurrent calls into shared transactions: natural group commit.
//!
//! Invariants: no timer, a flush starts as soon as a flusher is free and takes whatever has gathered; memory is bounded
//! in rows, bytes and waiting callers, and a full combiner pushes back; every caller is answered after the commit that
//! holds its items; a caller that goes away affects no other caller; one bad item fails its own caller and not its neighbours; a flush
//! that panics fails its callers and nothing else; a flush all of whose callers have gone is given up.

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::error::{Error, Kind, Result, panicked};

/// What a combiner may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Items waiting or in flight.
    pub(crate) rows: u32,
    /// KiB waiting or in flight.
    pub(crate) kib: u32,
    /// Callers waiting; one more is turned away.
    pub(crate) callers: usize,
    /// Items in one flush; a single larger call still goes whole.
    pub(crate) flush: usize,
    /// Flushes at the same time.
    pub(crate) flushers: usize,
}

/// Merges calls of one kind. `Q` is an item, `A` its answer.
pub(crate) struct Combiner<Q, A> {
    jobs: mpsc::UnboundedSender<Job<Q, A>>,
    rows: Arc<Semaphore>,
    kib: Arc<Semaphore>,
    callers: AtomicUsize,
    limits: Limits,
    flush: Flush<Q, A>,
}

tokio::task_local! {
    static ASKED: Instant;
}

/// When the oldest call was made that this task carries out. Waits for another process's lock are limited from there, so that the
/// wait for an earlier flush counts too: enqueues behind a flush that waited for 10 s were answered after 17 s.
pub(crate) fn asked() -> Instant {
    ASKED.try_with(|asked| *asked).unwrap_or_else(|_| Instant::now())
}

struct Job<Q, A> {
    items: Vec<Q>,
    asked: Instant,
    reply: oneshot::Sender<Result<Vec<A>>>,
    /// Given back when the job is answered.
    _room: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

/// Carries out a merged batch: one answer per item, in order, after the commit.
pub(crate) type Flush<Q, A> = Arc<dyn Fn(Arc<Vec<Q>>) -> BoxFuture<'static, Result<Vec<A>>> + Send + Sync>;

impl<Q, A> Combiner<Q, A>
where
    Q: Clone + Send + Sync + 'static,
    A: Clone + Send + 'static,
{
    /// Starts the flushers; they end when the combiner is dropped.
    pub(crate) fn start(limits: Limits, flush: &Flush<Q, A>) -> Self {
        let (jobs, inbox) = mpsc::unbounded_channel();
        let inbox = Arc::new(Mutex::new(inbox));
        for _ in 0..limits.flushers {
            tokio::spawn(flusher(inbox.clone(), limits.flush, flush.clone()));
        }
        Combiner {
            jobs,
            rows: Arc::new(Semaphore::new(limits.rows as usize)),
            kib: Arc::new(Semaphore::new(limits.kib as usize)),
            callers: AtomicUsize::new(0),
            limits,
            flush: flush.clone(),
        }
    }

    /// Hands over items and waits for their answers. `bytes` is what they weigh.
    pub(crate) async fn call(&self, items: Vec<Q>, bytes: usize) -> Result<Vec<A>> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let asked = Instant::now();
        let queued = Queued::enter(&self.callers, self.limits.callers)?;
        if queued.alone {
            // Nobody to merge with: two hops between tasks saved are a quarter of a lone caller's time. Should this
            // caller go away, only its own items are affected.
            return carry_out(&self.flush, Arc::new(items), asked).await;
        }
        let closed = || Error::new(Kind::Closed, "the store was closed");
        let rows = u32::try_from(items.len()).unwrap_or(u32::MAX).min(self.limits.rows);
        let kib = u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX).min(self.limits.kib);
        let rows = self.rows.clone().acquire_many_owned(rows).await.map_err(|_| closed())?;
        let kib = self.kib.clone().acquire_many_owned(kib).await.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job { items, asked, reply, _room: (rows, kib) }).map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }
}

/// Counts a waiting caller for as long as it waits, also when it gives up.
struct Queued<'a> {
    callers: &'a AtomicUsize,
    alone: bool,
}

impl<'a> Queued<'a> {
    fn enter(callers: &'a AtomicUsize, limit: usize) -> Result<Self> {
        let before = callers.fetch_add(1, Ordering::Relaxed);
        let queued = Queued { callers, alone: before == 0 };
        if before >= limit {
            let message = format!("{limit} callers are already waiting for the database: try again later");
            return Err(Error::new(Kind::Overloaded, message));
        }
        Ok(queued)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.callers.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn flusher<Q, A>(inbox: Arc<Mutex<mpsc::UnboundedReceiver<Job<Q, A>>>>, limit: usize, flush: Flush<Q, A>)
where
    Q: Clone + Send + Sync + 'static,
    A: Clone + Send + 'static,
{
    loop {
        let Some(mut jobs) = gather(&mut *inbox.lock().await, limit).await else { return };
        jobs.retain(|job| !job.reply.is_closed());
        flush_jobs(jobs, &flush).await;
    }
}

/// Waits for the first job, then takes whatever else has gathered; none when the combiner is gone.
async fn gather<Q, A>(inbox: &mut mpsc::UnboundedReceiver<Job<Q, A>>, limit: usize) -> Option<Vec<Job<Q, A>>> {
    let first = inbox.recv().await?;
    let mut rows = first.items.len();
    let mut jobs = vec![first];
    while rows < limit {
        let Ok(job) = inbox.try_recv() else { break };
        rows += job.items.len();
        jobs.push(job);
    }
    Some(jobs)
}

async fn flush_jobs<Q, A>(mut jobs: Vec<Job<Q, A>>, flush: &Flush<Q, A>)
where
    Q: Clone + Send + Sync + 'static,
    A: Clone + Send + 'static,
{
    if jobs.is_empty() {
        return;
    }
    let mut merged = Vec::with_capacity(jobs.iter().map(|job| job.items.len()).sum());
    let mut ranges: Vec<Range<usize>> = Vec::with_capacity(jobs.len());
    for job in &mut jobs {
        let start = merged.len();
        merged.append(&mut job.items);
        ranges.push(start..merged.len());
    }
    let merged = Arc::new(merged);
    let oldest = jobs.iter().map(|job| job.asked).min().unwrap_or_else(Instant::now);
    let flushed = tokio::select! {
        biased;
        flushed = carry_out(flush, merged.clone(), oldest) => flushed,
        () = all_gone(&mut jobs) => return,
    };
    match flushed {
        Ok(answers) => {
            let mut answers = answers.into_iter();
            for (job, range) in jobs.into_iter().zip(ranges) {
                answer(job, Ok(answers.by_ref().take(range.len()).collect()));
            }
        }
        // The batch was refused, not the database: find out whose item it was by asking for each caller alone.
        Err(error) if jobs.len() > 1 && !error.is_retryable() && !error.is_ambiguous() => {
            for (job, range) in jobs.into_iter().zip(ranges) {
                let result = carry_out(flush, Arc::new(merged[range].to_vec()), job.asked).await;
                answer(job, result);
            }
        }
        Err(error) => {
            for job in jobs {
                answer(job, Err(error.duplicate()));
            }
        }
    }
}

/// Runs a flush. If it panics, it may have been committed before.
async fn carry_out<Q, A>(flush: &Flush<Q, A>, items: Arc<Vec<Q>>, asked: Instant) -> Result<Vec<A>> {
    let flushed = AssertUnwindSafe(ASKED.scope(asked, async { flush(items).await })).catch_unwind().await;
    flushed.unwrap_or_else(|_| Err(panicked().ambiguous()))
}

/// Waits until no caller waits any more. Without this a batch that waits for SQLite's write lock would be carried out
/// long after its callers were told that it was not.
async fn all_gone<Q, A>(jobs: &mut [Job<Q, A>]) {
    for job in jobs {
        job.reply.closed().await;
    }
}

fn answer<Q, A>(job: Job<Q, A>, result: Result<Vec<A>>) {
    // A caller that went away does not need its answer.
    drop(job.reply.send(result));
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { rows: 100, kib: 64, callers: 64, flush: 100, flushers: 1 };

    /// Doubles its items; refuses any batch that holds a 13.
    fn doubling(sizes: Arc<std::sync::Mutex<Vec<usize>>>) -> Flush<i64, i64> {
        Arc::new(move |items| {
            sizes.lock().unwrap().push(items.len());
            Box::pin(async move {
                tokio::task::yield_now().await;
                match items.contains(&13) {
                    true => Err(Error::new(Kind::InvalidInput, "13")),
                    false => Ok(items.iter().map(|item| item * 2).collect()),
                }
            })
        })
    }

    #[tokio::test]
    async fn concurrent_calls_share_a_flush_and_get_their_own_answers() {
        let sizes = Arc::default();
        let combiner = Combiner::start(LIMITS, &doubling(Arc::clone(&sizes)));
        let calls = (100..150).map(|n| combiner.call(vec![n, n + 100], 1));
        for (n, answers) in futures_util::future::join_all(calls).await.into_iter().enumerate() {
            assert_eq!(answers.unwrap(), [(n as i64 + 100) * 2, (n as i64 + 200) * 2]);
        }
        assert!(sizes.lock().unwrap().len() < 10, "{sizes:?}");
    }

    #[tokio::test]
    async fn one_bad_item_fails_its_caller_and_not_its_neighbours() {
        let combiner = Combiner::start(LIMITS, &doubling(Arc::default()));
        let calls = [1, 13, 3].map(|item| combiner.call(vec![item], 1));
        let [one, bad, three] = <[_; 3]>::try_from(futures_util::future::join_all(calls).await).unwrap();
        assert_eq!((one.unwrap(), three.unwrap()), (vec![2], vec![6]));
        assert_eq!(bad.unwrap_err().kind(), Kind::InvalidInput);
    }

    #[tokio::test]
    async fn a_full_combiner_makes_callers_wait_and_turns_away_the_last() {
        let (open, gate) = tokio::sync::watch::channel(false);
        let flush: Flush<i64, i64> = Arc::new(move |items| {
            let mut gate = gate.clone();
            Box::pin(async move {
                gate.wait_for(|open| *open).await.unwrap();
                Ok(items.to_vec())
            })
        });
        let limits = Limits { rows: 4, callers: 3, ..LIMITS };
        let combiner = Arc::new(Combiner::start(limits, &flush));
        let mut calls = Vec::new();
        for n in 0..3 {
            let combiner = combiner.clone();
            calls.push(tokio::spawn(async move { combiner.call(vec![n, n], 1).await }));
            tokio::task::yield_now().await;
        }
        assert_eq!(combiner.rows.available_permits(), 0, "the third caller waits for room");
        assert_eq!(combiner.call(vec![9], 1).await.unwrap_err().kind(), Kind::Overloaded);
        open.send(true).unwrap();
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap().len(), 2);
        }
        assert_eq!(combiner.call(vec![9], 1).await.unwrap(), [9]);
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_does_not_poison_the_flush() {
        let combiner = Combiner::start(LIMITS, &doubling(Arc::default()));
        let mut gone = Box::pin(combiner.call(vec![1], 1));
        assert!(gone.as_mut().now_or_never().is_none());
        drop(gone);
        assert_eq!(combiner.call(vec![2], 1).await.unwrap(), [4]);
    }

    #[tokio::test]
    async fn panic_in_a_flush_fails_its_callers_and_the_flusher_goes_on() {
        let flush: Flush<i64, i64> = Arc::new(|items| {
            Box::pin(async move {
                tokio::task::yield_now().await;
                assert!(!items.contains(&13), "injected");
                Ok(items.to_vec())
            })
        });
        let combiner = Combiner::start(LIMITS, &flush);
        // The first runs in its own call, the others in the flusher.
        for error in futures_util::future::join_all([13, 13, 13].map(|item| combiner.call(vec![item], 1))).await {
            let error = error.unwrap_err();
            assert_eq!((error.kind(), error.is_ambiguous()), (Kind::Database, true));
        }
        let calls = [1, 2, 3].map(|item| combiner.call(vec![item], 1));
        for (n, answer) in futures_util::future::join_all(calls).await.into_iter().enumerate() {
            assert_eq!(answer.unwrap(), [n as i64 + 1]);
        }
    }

    #[tokio::test]
    async fn flush_is_given_up_when_its_last_caller_leaves() {
        let held = Arc::new(());
        let flush: Flush<i64, i64> = Arc::new({
            let held = held.clone();
            move |items| {
                let held = held.clone();
                Box::pin(async move {
                    if items.contains(&0) {
                        std::future::pending::<()>().await;
                    }
                    drop(held);
                    Ok(items.to_vec())
                })
            }
        });
        let combiner = Combiner::start(LIMITS, &flush);
        drop(flush);
        let idle = Arc::strong_count(&held);
        let mut alone = Box::pin(combiner.call(vec![0], 1));
        assert!(alone.as_mut().now_or_never().is_none());
        let mut first = Box::pin(combiner.call(vec![0], 1));
        let mut second = Box::pin(combiner.call(vec![0], 1));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        while Arc::strong_count(&held) < idle + 2 {
            tokio::task::yield_now().await;
        }
        drop(first);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(Arc::strong_count(&held), idle + 2, "one of two callers left");
        drop(second);
        while Arc::strong_count(&held) > idle + 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(combiner.call(vec![1], 1).await.unwrap(), [1]);
    }
}
