//! Leases, starts handlers while there is room, and ends in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::keeper::Keeper;
use super::work::{Counts, Handler, Unit, Work};
use super::{RetryPolicy, Summary, jittered};
use crate::consumer::Consumer;
use crate::error::{Error, Result};

/// The shortest lease that a loop can extend in time.
const SHORTEST: Duration = Duration::from_millis(100);
/// How long one claim waits for messages; then it is asked again.
const WAIT: Duration = Duration::from_secs(10);
/// How often this loop asks whether the housekeeping of the store is due; one process per store does it then.
const MAINTAIN_EVERY: Duration = Duration::from_secs(60);
/// How long a loop that was told to stop may go on after its grace: for handlers that listen to their token, and for the
/// database to release what is left. With two seconds a machine that stalled for two left messages leased.
const MARGIN: Duration = Duration::from_secs(5);
/// How long handlers may take of it, once when they are told and once when they are ended.
const MOMENT: Duration = Duration::from_millis(200);

pub(super) struct Loop<'a> {
    pub(super) consumer: &'a Consumer,
    pub(super) call: Handler,
    pub(super) concurrency: usize,
    pub(super) prefetch: Option<usize>,
    pub(super) lease: Option<Duration>,
    pub(super) retry: RetryPolicy,
    pub(super) time_limit: Option<Duration>,
    pub(super) grace: Duration,
}

impl Loop<'_> {
    pub(super) async fn run(self, mut until: BoxFuture<'_, Result<(), String>>) -> Result<Summary> {
        self.check()?;
        tokio::select! {
            biased;
            stop = &mut until => return stopped(stop).map(|()| Summary::default()),
            checked = self.check_queue() => checked?,
        }
        let keeper = Arc::new(Keeper::new(&self.consumer.store.kernel));
        let keeping = tokio::spawn(keeper.clone().run());
        let _keeping = AbortOnDrop(keeping);
        let _maintaining =
            AbortOnDrop(tokio::spawn(maintain(self.consumer.store.kernel.clone(), self.consumer.queue.clone())));
        let work = Arc::new(Work {
            kernel: self.consumer.store.kernel.clone(),
            queue: self.consumer.queue.clone(),
            worker: self.consumer.worker.id,
            observer: self.consumer.observer.clone(),
            call: self.call.clone(),
            keeper: keeper.clone(),
            retry: self.retry,
            time_limit: self.time_limit,
            counts: Counts::default(),
            releasing: AtomicU64::default(),
            stopping: CancellationToken::new(),
        });
        let mut tasks = JoinSet::new();
        let mut waiting: VecDeque<(u64, Unit)> = VecDeque::new();
        let mut releases = JoinSet::new();
        let result = self.drive(&mut until, &work, &mut tasks, &mut waiting, &mut releases).await;
        self.stop(&work, tasks, waiting, releases).await;
        result.map(|()| work.counts.summary())
    }

    fn check(&self) -> Result<()> {
        if self.concurrency == 0 {
            return Err(Error::invalid("concurrency is 0: let at least one handler work"));
        }
        if self.lease.is_some_and(|lease| lease < SHORTEST) {
            return Err(Error::invalid("the lease is shorter than 100 ms: it could not be extended in time"));
        }
        if self.time_limit.is_some_and(|limit| limit.is_zero()) {
            return Err(Error::invalid("the time limit of handlers is zero: give a positive duration"));
        }
        Ok(())
    }

    /// Refuses a queue whose lease is too short. The queue is looked up: its settings may have changed since the consumer was made,
    /// and claims lease for what they say now.
    async fn check_queue(&self) -> Result<()> {
        if self.lease.is_some() {
            return Ok(());
        }
        let name = &self.consumer.queue.name;
        match self.consumer.store.queue(name).await {
            Ok(queue) if queue.settings.lease < SHORTEST => Err(Error::invalid(format!(
                "the lease of queue '{name}' is shorter than 100 ms: it could not be extended in time; change the queue's lease, \
                 or give the loop one of its own with `Run::lease`"
            ))),
            // The claims wait for a database that is away.
            Err(error) if !error.is_retryable() => Err(error),
            _ => Ok(()),
        }
    }

    /// Leases and starts, until told to stop.
    async fn drive(
        &self,
        until: &mut BoxFuture<'_, Result<(), String>>,
        work: &Arc<Work>,
        tasks: &mut JoinSet<()>,
        waiting: &mut VecDeque<(u64, Unit)>,
        releases: &mut JoinSet<()>,
    ) -> Result<()> {
        let mut messages = Claims::new(self, ClaimKind::Messages);
        let mut keys = Claims::new(self, ClaimKind::Keys);
        let mut owed: Option<ClaimKind> = None;
        loop {
            while tasks.len() < self.concurrency
                && let Some((ticket, unit)) = waiting.pop_front()
            {
                tasks.spawn(work.clone().handle(ticket, unit));
            }
            let capacity = self.concurrency.saturating_add(self.prefetch.unwrap_or(self.concurrency));
            // A claim that was under way while the other kind filled this loop brings more than there is room for.
            let places = capacity.saturating_sub(tasks.len());
            if waiting.len() > places {
                // Beside the loop, which would not hear that it is to stop while the database does not answer.
                let (work, beyond) = (work.clone(), waiting.split_off(places));
                releases.spawn(async move { work.put_back(beyond).await });
            }
            while releases.try_join_next().is_some() {}
            let room = places - waiting.len();
            if room == 0 && self.prefetch == Some(0) {
                // No message is to wait here for a handler. A claim that was under way comes first the next time: otherwise the
                // kind that is found faster would starve the other.
                let cancelled = [&mut messages, &mut keys].into_iter().filter_map(Claims::cancel);
                owed = cancelled.last().or(owed);
            }
            let asks =
                |claims: &Claims<'_>| claims.is_asking() || room > 0 && owed.is_none_or(|owed| owed == claims.kind);
            let (ask_messages, ask_keys) = (asks(&messages), asks(&keys));
            let wait = if owed.is_some() { Duration::ZERO } else { WAIT };
            tokio::select! {
                biased;
                stop = &mut *until => return stopped(stop),
                () = self.consumer.worker.fenced.cancelled() => {
                    return Err(Error::WorkerStopped { id: self.consumer.worker.id });
                }
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a task of the consumer ended early; its message comes again");
                    }
                }
                // What was asked for is taken in even when there is no more room: its lease is running.
                units = messages.next(room, wait), if ask_messages => {
                    owed = None;
                    waiting.extend(work.register(units?));
                }
                units = keys.next(1, wait), if ask_keys => {
                    owed = None;
                    waiting.extend(work.register(units?));
                }
            }
        }
    }

    /// Finishes or releases everything, within the grace and [`MARGIN`]. Messages that no handler has seen, and those of claims
    /// that were under way, are released beside the handlers.
    async fn stop(
        &self,
        work: &Arc<Work>,
        mut tasks: JoinSet<()>,
        waiting: VecDeque<(u64, Unit)>,
        mut releases: JoinSet<()>,
    ) {
        let began = Instant::now();
        work.stopping.cancel();
        let (unseen, kernel) = (work.clone(), work.kernel.clone());
        releases.spawn(async move { unseen.put_back(waiting).await });
        releases.spawn(async move { kernel.abandoned_released().await });
        if !end_within(self.grace, &mut tasks).await {
            work.keeper.lose_all();
            let moment = MOMENT.min(self.grace);
            if !end_within(moment, &mut tasks).await {
                tasks.abort_all();
                // A handler that blocks its thread does not end here, and no message waits for it.
                end_within(MOMENT, &mut tasks).await;
                let work = work.clone();
                releases.spawn(async move { work.release_all().await });
            }
        }
        let left = self.grace.saturating_add(MARGIN).saturating_sub(began.elapsed());
        if !end_within(left, &mut releases).await {
            let messages = work.releasing.load(Ordering::Relaxed);
            tracing::warn!(
                messages,
                "the database has not released all messages in time; they stay leased until their leases expire"
            );
        }
    }
}

/// What the future that stops the loop has said.
fn stopped(stop: Result<(), String>) -> Result<()> {
    stop.map_err(|error| Error::invalid(format!("the future that stops the loop has failed: {error}")))
}

/// Whether all tasks end in this time.
async fn end_within(time: Duration, tasks: &mut JoinSet<()>) -> bool {
    tokio::time::timeout(time, async { while tasks.join_next().await.is_some() {} }).await.is_ok()
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn maintain(kernel: tenure_store::Store, queue: tenure_store::Queue) {
    loop {
        // At the start too: a program that only ever runs for a short time does its part.
        match kernel.maintain_in_turn().await {
            Ok(Some(done)) => tracing::debug!(?done, "housekeeping is done"),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, queue = %queue.name, "housekeeping failed, and is tried again in a minute");
            }
        }
        tokio::time::sleep(jittered(MAINTAIN_EVERY)).await;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ClaimKind {
    Messages,
    Keys,
}

/// One kind of claim, asked again and again; errors of a database that is away are waited out.
struct Claims<'a> {
    run: &'a Loop<'a>,
    kind: ClaimKind,
    going_on: Option<BoxFuture<'a, tenure_store::Result<Vec<Unit>>>>,
    failures: u32,
    rest_until: Option<Instant>,
}

impl<'a> Claims<'a> {
    fn new(run: &'a Loop<'a>, kind: ClaimKind) -> Self {
        Claims { run, kind, going_on: None, failures: 0, rest_until: None }
    }

    fn is_asking(&self) -> bool {
        self.going_on.is_some()
    }

    /// Ends a claim that is under way. Messages already leased for it are released without counting an attempt. Its kind, if
    /// there was one.
    fn cancel(&mut self) -> Option<ClaimKind> {
        self.going_on.take().map(|_| self.kind)
    }

    /// The next units; what is going on goes on when this is dropped.
    async fn next(&mut self, room: usize, wait: Duration) -> Result<Vec<Unit>> {
        if let Some(until) = self.rest_until {
            tokio::time::sleep_until(until).await;
            self.rest_until = None;
        }
        let (run, kind) = (self.run, self.kind);
        let claim = self.going_on.get_or_insert_with(|| ask(run, kind, room, wait).boxed());
        let result = claim.await;
        self.going_on = None;
        match result {
            Ok(units) => {
                self.failures = 0;
                Ok(units)
            }
            Err(error) if error.is_retryable() => {
                self.failures = (self.failures + 1).min(6);
                let rest = jittered(Duration::from_millis(50 << self.failures));
                tracing::warn!(%error, ?rest, "cannot lease messages, and will try again");
                self.rest_until = Some(Instant::now() + rest);
                Ok(Vec::new())
            }
            Err(error) => Err(run.consumer.judge(error)),
        }
    }
}

async fn ask(run: &Loop<'_>, kind: ClaimKind, limit: usize, wait: Duration) -> tenure_store::Result<Vec<Unit>> {
    match kind {
        ClaimKind::Messages => {
            let (queue, messages) = run.consumer.claim(limit, run.lease, wait).await?;
            Ok(messages.into_iter().map(|message| Unit::Message(queue, message)).collect())
        }
        ClaimKind::Keys => {
            let (queue, batch) = run.consumer.claim_key(run.lease, wait).await?;
            Ok(batch.into_iter().map(|batch| Unit::Key(queue, batch)).collect())
        }
    }
}
