//! The loop that people really use: lease, handle, finish, until told to stop.
//!
//! Invariants: no handler error and no panic ends the loop; a lease is extended for as long as its handler works, and a
//! handler whose lease cannot be kept is told before anybody else can get the message; a message that was finished is
//! finished in the database, however often the database was away meanwhile; when the loop ends, everything that it held
//! is finished or free.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, IntoFuture};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rand::Rng as _;
use tenure_store::{Answer, Claim, Fence, KeyBatch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::consumer::Consumer;
use crate::error::{Error, Result};
use crate::observe::Observer;
use crate::store::maintain_queue;
use crate::types::QueueMessage;
use crate::verb::Verb;

/// How long one claim waits for messages; then it is asked again.
const WAIT: Duration = Duration::from_secs(10);
/// How often the queue is swept for what has expired and for what its retention says.
const MAINTAIN_EVERY: Duration = Duration::from_secs(60);

/// What a handler wants done with its message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is done.
    Complete,
    /// Deliver it again after this long.
    RetryAfter(Duration),
    /// It can never be done, for this reason.
    Bury(String),
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Outcome::Complete
    }
}

/// How long a message rests after its handler failed: longer each time, and never for all at the same moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// After the first failure.
    pub first: Duration,
    /// How much longer each time.
    pub factor: f64,
    /// At most.
    pub max: Duration,
    /// The part of it that is left to chance, from 0 to 1.
    pub jitter: f64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy { first: Duration::from_secs(1), factor: 2.0, max: Duration::from_secs(300), jitter: 0.25 }
    }
}

impl RetryPolicy {
    /// The rest after the failure of this attempt.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure::RetryPolicy;
    /// let policy = RetryPolicy { jitter: 0.0, ..RetryPolicy::default() };
    /// assert_eq!(policy.delay(1), Duration::from_secs(1));
    /// assert_eq!(policy.delay(4), Duration::from_secs(8));
    /// assert_eq!(policy.delay(100), policy.max);
    /// ```
    pub fn delay(&self, attempt: i32) -> Duration {
        let exponent = attempt.clamp(1, 64) - 1;
        let full = (self.first.as_secs_f64() * self.factor.max(1.0).powi(exponent)).min(self.max.as_secs_f64());
        let jitter = self.jitter.clamp(0.0, 1.0);
        Duration::from_secs_f64(full * rand::rng().random_range(1.0 - jitter..=1.0)).max(Duration::from_millis(1))
    }
}

/// A message in a handler's hands.
#[derive(Debug)]
pub struct Delivery {
    /// The message.
    pub message: QueueMessage,
    lost: CancellationToken,
}

impl std::ops::Deref for Delivery {
    type Target = QueueMessage;

    fn deref(&self) -> &QueueMessage {
        &self.message
    }
}

impl Delivery {
    /// Cancelled when the lease cannot be kept any longer, or the loop ends before the handler does: stop, because
    /// somebody else will get the message.
    pub fn lease_lost(&self) -> &CancellationToken {
        &self.lost
    }
}

/// What a loop did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Messages completed.
    pub completed: u64,
    /// Messages to be delivered again, because their handler said so or failed.
    pub retried: u64,
    /// Messages declared dead.
    pub buried: u64,
    /// Messages whose lease was lost before they were finished.
    pub lost: u64,
    /// Messages given back when the loop ended.
    pub released: u64,
}

/// A loop to be: say how, then await it. It ends when [`until`](Run::until) says so, or when this consumer is stopped.
///
/// The handler returns `Ok(())` or [`Outcome::Complete`] when the message is done, [`Outcome::RetryAfter`] or
/// [`Outcome::Bury`] when it is not, and an error to have it delivered again after the [`RetryPolicy`]'s rest. A panic
/// counts as an error. The last error of a message that runs out of attempts is the reason of its death.
///
/// Messages with keys are handled too: those of one key one after the other, in order.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// use std::time::Duration;
/// use tenure::{Admin, Consumer, Delivery, Outcome, Producer, Store};
/// let store = Store::connect(":memory:").await?;
/// store.install().await?;
/// Admin::on(&store).create_queue("mail").await?;
/// Producer::on(&store, "mail", "host-1", 1).await?.batch_enqueue(&["to ada", "spam"]).await?;
///
/// let handle = |mail: Delivery| async move {
///     match mail.json::<String>()?.as_str() {
///         "spam" => Ok::<_, tenure::Error>(Outcome::Bury("spam".into())),
///         _ => Ok(Outcome::Complete),
///     }
/// };
/// let consumer = Consumer::on(&store, "mail", "host-1", 2).await?;
/// let soon = tokio::time::sleep(Duration::from_millis(300));
/// let summary = consumer.run(handle).concurrency(8).until(soon).await?;
/// assert_eq!((summary.completed, summary.buried), (1, 1));
/// # Ok(())
/// # }
/// ```
#[must_use = "a loop does nothing until it is awaited"]
pub struct Run<'a, H> {
    consumer: &'a Consumer,
    handler: H,
    concurrency: usize,
    lease: Duration,
    retry: RetryPolicy,
    grace: Duration,
    until: BoxFuture<'a, ()>,
}

impl<'a, H> Run<'a, H> {
    pub(crate) fn new(consumer: &'a Consumer, handler: H) -> Self {
        Run {
            consumer,
            handler,
            concurrency: 16,
            lease: consumer.store.config.lock_time(),
            retry: RetryPolicy::default(),
            grace: Duration::from_secs(30),
            until: std::future::pending().boxed(),
        }
    }

    /// How many handlers work at the same time.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.concurrency = handlers;
        self
    }

    /// How long a lease lasts. It is extended while the handler works, so this is only how long a message waits when
    /// this process dies.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long messages rest after their handler failed.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// How long handlers may go on after the loop was told to stop. Then they are told, ended, and their messages given
    /// back.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// When to stop: the end of this future, such as a signal.
    pub fn until(mut self, stop: impl Future<Output = ()> + Send + 'a) -> Self {
        self.until = stop.boxed();
        self
    }
}

impl<'a, H, F, O, E> IntoFuture for Run<'a, H>
where
    H: Fn(Delivery) -> F + Send + Sync + 'static,
    F: Future<Output = Result<O, E>> + Send + 'static,
    O: Into<Outcome>,
    E: std::fmt::Display,
{
    type Output = Result<Summary>;
    type IntoFuture = BoxFuture<'a, Result<Summary>>;

    fn into_future(self) -> Self::IntoFuture {
        let handler = Arc::new(self.handler);
        let call: Handler = Arc::new(move |delivery| {
            let handler = handler.clone();
            async move {
                // Also the call itself may panic, before there is a future.
                let work = AssertUnwindSafe(async move { handler(delivery).await.map(Into::into) });
                match work.catch_unwind().await {
                    Ok(Ok(outcome)) => Ok(outcome),
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(panic) => Err(format!("the handler panicked: {}", panic_text(&*panic))),
                }
            }
            .boxed()
        });
        let looping = Loop {
            consumer: self.consumer,
            call,
            concurrency: self.concurrency,
            lease: self.lease,
            retry: self.retry,
            grace: self.grace,
        };
        looping.run(self.until).boxed()
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no text".to_owned())
}

type Handler = Arc<dyn Fn(Delivery) -> BoxFuture<'static, Result<Outcome, String>> + Send + Sync>;

struct Loop<'a> {
    consumer: &'a Consumer,
    call: Handler,
    concurrency: usize,
    lease: Duration,
    retry: RetryPolicy,
    grace: Duration,
}

/// What was leased together and is handled one after the other.
enum Unit {
    Message(tenure_store::Message),
    Key(KeyBatch),
}

impl Loop<'_> {
    async fn run(self, mut until: BoxFuture<'_, ()>) -> Result<Summary> {
        if self.concurrency == 0 {
            return Err(Error::invalid("concurrency is 0: let at least one handler work"));
        }
        if self.lease < Duration::from_millis(100) {
            return Err(Error::invalid("the lease is shorter than 100 ms: it could not be extended in time"));
        }
        let keeper = Arc::new(Keeper::new(&self.consumer.store.kernel, self.lease));
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
            counts: Counts::default(),
        });
        let mut tasks = JoinSet::new();
        let mut waiting: VecDeque<(u64, Unit)> = VecDeque::new();
        let result = self.drive(&mut until, &work, &mut tasks, &mut waiting).await;
        self.stop(&work, tasks, waiting).await;
        result.map(|()| work.counts.summary())
    }

    /// Leases and starts, until told to stop.
    async fn drive(
        &self,
        until: &mut BoxFuture<'_, ()>,
        work: &Arc<Work>,
        tasks: &mut JoinSet<()>,
        waiting: &mut VecDeque<(u64, Unit)>,
    ) -> Result<()> {
        let mut messages = Claims::new(self, ClaimKind::Messages);
        let mut keys = Claims::new(self, ClaimKind::Keys);
        loop {
            while tasks.len() < self.concurrency
                && let Some((ticket, unit)) = waiting.pop_front()
            {
                tasks.spawn(work.clone().handle(ticket, unit));
            }
            // As many again as are being worked on may wait their turn here, so that handlers never wait for a claim.
            let room = (2 * self.concurrency).saturating_sub(tasks.len() + waiting.len());
            tokio::select! {
                biased;
                () = &mut *until => return Ok(()),
                () = self.consumer.worker.fenced.cancelled() => {
                    return Err(Error::WorkerStopped { id: self.consumer.worker.id });
                }
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a task of the consumer ended early; its message comes again");
                    }
                }
                units = messages.next(room), if room > 0 => waiting.extend(work.register(units?)),
                units = keys.next(1), if room > 0 => waiting.extend(work.register(units?)),
            }
        }
    }

    /// Finishes or gives back everything.
    async fn stop(&self, work: &Arc<Work>, mut tasks: JoinSet<()>, waiting: VecDeque<(u64, Unit)>) {
        for (ticket, unit) in waiting {
            work.put_back(ticket, unit).await;
        }
        let all_done = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(self.grace, all_done).await.is_ok() {
            return;
        }
        work.keeper.lose_all();
        // A moment for handlers that listen to their token.
        let moment = Duration::from_millis(200).min(self.grace);
        let all_done = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(moment, all_done).await.is_ok() {
            return;
        }
        tasks.shutdown().await;
        work.release_all().await;
    }
}

/// Half of it to all of it, so that processes do not march in step.
fn jittered(rest: Duration) -> Duration {
    rest.mul_f64(rand::rng().random_range(0.5..1.0))
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn maintain(kernel: tenure_store::Store, queue: tenure_store::Queue) {
    loop {
        tokio::time::sleep(jittered(MAINTAIN_EVERY)).await;
        if let Err(error) = maintain_queue(&kernel, &queue).await {
            tracing::warn!(%error, queue = %queue.name, "housekeeping failed, and is tried again in a minute");
        }
    }
}

#[derive(Clone, Copy)]
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

    /// The next units; what is going on goes on when this is dropped.
    async fn next(&mut self, room: usize) -> Result<Vec<Unit>> {
        if let Some(until) = self.rest_until {
            tokio::time::sleep_until(until).await;
            self.rest_until = None;
        }
        let (run, kind) = (self.run, self.kind);
        let claim = self.going_on.get_or_insert_with(|| ask(run, kind, room).boxed());
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
            Err(error) => Err(error.into()),
        }
    }
}

async fn ask(run: &Loop<'_>, kind: ClaimKind, limit: usize) -> tenure_store::Result<Vec<Unit>> {
    let Consumer { store, queue, worker, .. } = run.consumer;
    match kind {
        ClaimKind::Messages => {
            let claim = Claim {
                lanes: queue.lanes.clone(),
                limit,
                lease: Some(run.lease),
                worker: Some(worker.id),
                wait: WAIT,
            };
            Ok(store.kernel.claim(claim).await?.into_iter().map(Unit::Message).collect())
        }
        ClaimKind::Keys => {
            let batch = store.kernel.claim_key(&queue.lanes, Some(run.lease), Some(worker.id), WAIT).await?;
            Ok(batch.into_iter().map(Unit::Key).collect())
        }
    }
}

#[derive(Default)]
struct Counts {
    completed: AtomicU64,
    retried: AtomicU64,
    buried: AtomicU64,
    lost: AtomicU64,
    released: AtomicU64,
}

impl Counts {
    fn summary(&self) -> Summary {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Summary {
            completed: read(&self.completed),
            retried: read(&self.retried),
            buried: read(&self.buried),
            lost: read(&self.lost),
            released: read(&self.released),
        }
    }
}

/// What the tasks of a loop share.
struct Work {
    kernel: tenure_store::Store,
    queue: tenure_store::Queue,
    worker: i64,
    observer: Observer,
    call: Handler,
    keeper: Arc<Keeper>,
    retry: RetryPolicy,
    counts: Counts,
}

impl Work {
    /// Puts what was just leased under the keeper's care.
    fn register(&self, units: Vec<Unit>) -> Vec<(u64, Unit)> {
        let keep = |unit: Unit| {
            let what = match &unit {
                Unit::Message(message) => Leased::Message(message.fence()),
                Unit::Key(batch) => Leased::Key(batch.token),
            };
            (self.keeper.add(what), unit)
        };
        units.into_iter().map(keep).collect()
    }

    async fn handle(self: Arc<Self>, ticket: u64, unit: Unit) {
        match unit {
            Unit::Message(message) => {
                let fence = message.fence();
                let verdict = self.deliver(ticket, message).await;
                self.finish(fence, verdict).await;
            }
            Unit::Key(batch) => self.handle_key(ticket, batch).await,
        }
        self.keeper.remove(ticket);
    }

    /// The messages of a key, one after the other. The first that must be tried again sends the rest back behind it.
    async fn handle_key(&self, ticket: u64, batch: KeyBatch) {
        for message in batch.messages {
            let fence = message.fence();
            match self.deliver(ticket, message).await {
                Some(Verb::RetryAfter(rest)) => {
                    // In place, with the key at rest: nothing of this key overtakes it.
                    self.settle(&Act::AbandonKey(batch.token, rest)).await;
                    self.count(&self.counts.retried, "retried");
                    return;
                }
                verdict => {
                    if !self.finish(fence, verdict).await {
                        return;
                    }
                }
            }
        }
        self.settle(&Act::CompleteKey(batch.token)).await;
    }

    /// Calls the handler and decides what its answer means for this message.
    async fn deliver(&self, ticket: u64, message: tenure_store::Message) -> Option<Verb> {
        let lost = self.keeper.token(ticket).filter(|lost| !lost.is_cancelled())?;
        self.observer.count("delivered", 1);
        let limit = message.max_attempts.or(self.queue.settings.max_attempts.map(i64::from));
        let attempt = message.attempts;
        let message = QueueMessage::leased(self.queue.id, message);
        let id = message.id;
        let verb = match (self.call)(Delivery { message, lost }).await {
            Ok(Outcome::Complete) => Verb::Complete,
            Ok(Outcome::Bury(reason)) => Verb::Bury(reason),
            Ok(Outcome::RetryAfter(rest)) => Verb::RetryAfter(rest.max(Duration::from_millis(1))),
            Err(error) if limit.is_some_and(|limit| attempt >= limit) => {
                tracing::error!(message = id, attempt, %error, "the handler failed for the last time");
                Verb::Bury(format!("failed in attempt {attempt}, the last one: {error}"))
            }
            Err(error) => {
                let rest = self.retry.delay(i32::try_from(attempt).unwrap_or(i32::MAX));
                tracing::warn!(message = id, attempt, ?rest, %error, "the handler failed, and will be called again");
                Verb::RetryAfter(rest)
            }
        };
        Some(verb)
    }

    /// Carries a verdict out; none: the lease was gone before the handler was called. Whether it was still ours.
    async fn finish(&self, fence: Fence, verdict: Option<Verb>) -> bool {
        let Some(mut verb) = verdict else {
            self.count(&self.counts.lost, "lost");
            return false;
        };
        if let Verb::Bury(reason) = &mut verb {
            // Databases store no NUL in a text, and nobody reads a novel.
            *reason = reason.replace('\0', " ").chars().take(10_000).collect();
        }
        let counter = match verb {
            Verb::RetryAfter(_) => &self.counts.retried,
            Verb::Bury(_) => &self.counts.buried,
            _ => &self.counts.completed,
        };
        let event = verb.names().1;
        let answer = self.settle(&Act::Finish(verb, fence.by(self.worker))).await;
        let ours = matches!(answer, Some(Answer::Done | Answer::Already));
        match ours {
            true => self.count(counter, event),
            false => self.count(&self.counts.lost, "lost"),
        }
        ours
    }

    fn count(&self, counter: &AtomicU64, event: &'static str) {
        counter.fetch_add(1, Ordering::Relaxed);
        self.observer.count(event, 1);
    }

    /// Asks until the database answers: what a handler has done must not be done again for want of a connection.
    async fn settle(&self, act: &Act) -> Option<Answer> {
        let operation = act.name();
        let mut rest = Duration::from_millis(100);
        loop {
            match self.observer.watch(operation, async { Ok(act.apply(&self.kernel).await?) }).await {
                Ok(answer) => return Some(answer),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, operation, "cannot finish a message, and will try again");
                    tokio::time::sleep(jittered(rest)).await;
                    rest = (rest * 2).min(Duration::from_secs(2));
                }
                Err(error) => {
                    tracing::error!(%error, operation, "cannot finish a message; it comes again when its lease ends");
                    return None;
                }
            }
        }
    }

    /// Gives back what no handler has seen.
    async fn put_back(&self, ticket: u64, unit: Unit) {
        let result = match unit {
            Unit::Message(message) => self.kernel.put_back(&[message.fence()]).await.map(drop),
            Unit::Key(batch) => self.kernel.key_abandon(batch.token, Duration::ZERO).await.map(drop),
        };
        self.keeper.remove(ticket);
        self.given_back(result);
    }

    /// Gives back what is still under the keeper's care.
    async fn release_all(&self) {
        for what in self.keeper.take_all() {
            let result = match what {
                Leased::Message(fence) => self.kernel.release(&[fence]).await.map(drop),
                Leased::Key(token) => self.kernel.key_abandon(token, Duration::ZERO).await.map(drop),
            };
            self.given_back(result);
        }
    }

    fn given_back(&self, result: tenure_store::Result<()>) {
        match result {
            Ok(()) => self.count(&self.counts.released, "released"),
            Err(error) => tracing::warn!(%error, "a message stays leased until its lease runs out"),
        }
    }
}

/// What the loop asks of the database for one message, or for one key.
enum Act {
    Finish(Verb, Fence),
    AbandonKey(i64, Duration),
    CompleteKey(i64),
}

impl Act {
    fn name(&self) -> &'static str {
        match self {
            Act::Finish(verb, _) => verb.names().0,
            Act::AbandonKey(..) => "abandon_key",
            Act::CompleteKey(_) => "complete_key",
        }
    }

    async fn apply(&self, kernel: &tenure_store::Store) -> tenure_store::Result<Answer> {
        match self {
            Act::Finish(verb, fence) => Ok(verb.apply(kernel, &[*fence]).await?[0]),
            Act::AbandonKey(token, rest) => kernel.key_abandon(*token, *rest).await,
            Act::CompleteKey(token) => kernel.key_complete(*token).await,
        }
    }
}

#[derive(Clone, Copy)]
enum Leased {
    Message(Fence),
    Key(i64),
}

/// Extends the leases of a loop, and tells handlers whose lease cannot be kept.
struct Keeper {
    kernel: tenure_store::Store,
    lease: Duration,
    leases: Mutex<HashMap<u64, Kept>>,
    next: AtomicU64,
}

struct Kept {
    what: Leased,
    /// When the lease ends by our own clock, counted from the answer to the claim.
    until: Instant,
    lost: CancellationToken,
}

impl Keeper {
    fn new(kernel: &tenure_store::Store, lease: Duration) -> Self {
        Keeper { kernel: kernel.clone(), lease, leases: Mutex::default(), next: AtomicU64::new(0) }
    }

    fn leases(&self) -> MutexGuard<'_, HashMap<u64, Kept>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, what: Leased) -> u64 {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let kept = Kept { what, until: Instant::now() + self.lease, lost: CancellationToken::new() };
        self.leases().insert(ticket, kept);
        ticket
    }

    fn token(&self, ticket: u64) -> Option<CancellationToken> {
        self.leases().get(&ticket).map(|kept| kept.lost.clone())
    }

    fn remove(&self, ticket: u64) {
        self.leases().remove(&ticket);
    }

    fn lose_all(&self) {
        for kept in self.leases().values() {
            kept.lost.cancel();
        }
    }

    fn take_all(&self) -> Vec<Leased> {
        self.leases().drain().map(|(_, kept)| kept.what).collect()
    }

    /// Looks eight times in a lease: extends by half a lease what has less than five eighths of one left, and gives up
    /// what has less than one eighth, which is the margin for slow answers and clocks that drift.
    async fn run(self: Arc<Self>) {
        let tick = self.lease / 8;
        loop {
            tokio::time::sleep(tick).await;
            let now = Instant::now();
            let mut due = Vec::new();
            for (ticket, kept) in self.leases().iter() {
                if kept.lost.is_cancelled() {
                    continue;
                }
                if kept.until <= now + tick {
                    kept.lost.cancel();
                } else if kept.until <= now + self.lease * 5 / 8 {
                    due.push((*ticket, kept.what));
                }
            }
            // Not longer than a tick: whoever cannot be extended must be told in time.
            if tokio::time::timeout(tick, self.extend(&due)).await.is_err() {
                tracing::warn!(leases = due.len(), "leases could not be extended in time, and will be tried again");
            }
        }
    }

    async fn extend(&self, due: &[(u64, Leased)]) {
        let extra = self.lease / 2;
        let asked = Instant::now();
        let messages: Vec<(u64, Fence)> = due
            .iter()
            .filter_map(|(ticket, what)| if let Leased::Message(fence) = what { Some((*ticket, *fence)) } else { None })
            .collect();
        if !messages.is_empty() {
            let fences: Vec<Fence> = messages.iter().map(|(_, fence)| *fence).collect();
            match self.kernel.extend(&fences, extra).await {
                Ok(answers) => {
                    for ((ticket, _), until) in messages.iter().zip(answers) {
                        self.extended(*ticket, until.is_some(), asked, extra);
                    }
                }
                Err(error) => tracing::warn!(%error, "leases could not be extended, and will be tried again"),
            }
        }
        for (ticket, what) in due {
            if let Leased::Key(token) = what {
                match self.kernel.key_extend(*token, extra).await {
                    Ok(until) => self.extended(*ticket, until.is_some(), asked, extra),
                    Err(error) => {
                        tracing::warn!(%error, "a key's lease could not be extended, and will be tried again")
                    }
                }
            }
        }
    }

    fn extended(&self, ticket: u64, held: bool, asked: Instant, extra: Duration) {
        if let Some(kept) = self.leases().get_mut(&ticket) {
            match held {
                true => kept.until = kept.until.max(asked) + extra,
                false => kept.lost.cancel(),
            }
        }
    }
}
