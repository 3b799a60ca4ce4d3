//! The loop that most programs use: lease, handle, finish, until told to stop.
//!
//! Invariants: no handler error and no panic ends the loop; a lease is extended for as long as its handler works, and a
//! handler whose lease cannot be kept is told before another consumer can get the message; a message that was finished is
//! finished in the database, however often the database was away meanwhile; when the loop ends, everything that it held
//! is finished or free.

mod drive;
mod keeper;
mod work;

use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rand::Rng as _;
use tokio_util::sync::CancellationToken;

use self::drive::Loop;
use self::work::Handler;
use crate::consumer::Consumer;
use crate::error::Result;
use crate::types::QueueMessage;

/// What a handler wants done with its message.
///
/// ```
/// use tenure::Outcome;
/// assert_eq!(Outcome::from(()), Outcome::Complete);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is done.
    Complete,
    /// It failed: deliver it again after this long, at most 100 years. After its last attempt it is buried instead.
    RetryAfter(Duration),
    /// It is too early for it: deliver it again after this long, at most 100 years. This delivery does not count as an attempt,
    /// so a message can be snoozed any number of times.
    Snooze(Duration),
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
    /// let patient = RetryPolicy { max: Duration::MAX, ..policy };
    /// assert!(patient.delay(100) > policy.max);
    /// ```
    pub fn delay(&self, attempt: i32) -> Duration {
        let exponent = attempt.clamp(1, 64) - 1;
        let full = (self.first.as_secs_f64() * self.factor.max(1.0).powi(exponent)).min(self.max.as_secs_f64());
        let jitter = self.jitter.clamp(0.0, 1.0);
        let delay = Duration::try_from_secs_f64(full * rand::rng().random_range(1.0 - jitter..=1.0));
        // `Duration::MAX` is rounded up to a number of seconds that no duration holds.
        delay.unwrap_or(self.max).max(Duration::from_millis(1))
    }
}

/// A message in a handler's hands. It reads like the [`QueueMessage`] in it.
///
/// ```
/// use tenure::Delivery;
/// async fn handle(job: Delivery) -> Result<(), &'static str> {
///     println!("message {} in attempt {}", job.id, job.read_ct);
///     tokio::select! {
///         () = tokio::time::sleep(std::time::Duration::from_secs(60)) => Ok(()),
///         () = job.lease_lost().cancelled() => Err("another consumer will do it"),
///     }
/// }
/// ```
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
    /// Cancelled when the lease cannot be kept any longer, the message was deleted or freed, the handler has reached its
    /// [time limit](Run::time_limit), or the loop ends before the handler does: stop, because another consumer may get the message,
    /// and return an error, because `Ok` says that the work is done. Also cancelled about 0.4 s after the handler itself has
    /// completed the message outside a transaction.
    pub fn lease_lost(&self) -> &CancellationToken {
        &self.lost
    }
}

/// What a loop did.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// # use tenure::*;
/// # let store = Store::connect(":memory:").await?;
/// # store.install().await?;
/// # let admin = Admin::on(&store);
/// # admin.create_queue("mail").await?;
/// # let producer = Producer::on(&store, "mail", "host-1", 1).await?;
/// # let consumer = Consumer::on(&store, "mail", "host-1", 2).await?;
/// producer.enqueue("hello").await?;
/// let done = async {
///     while admin.get_queue_metrics("mail").await?.total_messages > 0 {
///         tokio::time::sleep(std::time::Duration::from_millis(20)).await;
///     }
///     Ok::<_, Error>(())
/// };
/// let summary: Summary = consumer.run(|_: Delivery| async { Ok::<_, Error>(()) }).until(done).await?;
/// assert_eq!((summary.completed, summary.lost), (1, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Messages completed: by the loop, or by their handlers themselves, in a transaction or by hand.
    pub completed: u64,
    /// Messages to be delivered again, because their handler said so or failed.
    pub retried: u64,
    /// Messages to be delivered again without having used an attempt, because their handler said so.
    pub snoozed: u64,
    /// Messages declared dead.
    pub buried: u64,
    /// Messages whose lease was lost before they were finished: another consumer may have handled them too. Messages that were
    /// deleted count here when their handlers did not say that they are done.
    pub lost: u64,
    /// Messages given back because the loop ended, or because no handler was free for them.
    pub released: u64,
}

/// A loop to be: say how, then await it. It ends when [`until`](Run::until) says so, with `WorkerStopped` when this consumer is
/// stopped, and with `QueueNotFound` when its queue is deleted. When a queue is created anew under its name within about a second,
/// the loop continues with the new queue.
///
/// The handler returns `Ok(())` or [`Outcome::Complete`] when the message is done, [`Outcome::RetryAfter`] or
/// [`Outcome::Bury`] when it is not, [`Outcome::Snooze`] when it is too early for it, and an error to have it delivered again
/// after the [`RetryPolicy`]'s rest. A panic counts as an error. The last error of a message that runs out of attempts is the
/// reason of its death.
///
/// Messages with keys are handled too: those of one key one after the other, in order.
///
/// A loop that is dropped instead of told to stop ends its handlers where they are; their messages come again when their
/// leases run out.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// use std::time::Duration;
/// use tenure::{Admin, Consumer, Delivery, Outcome, Producer, Store};
/// let store = Store::connect(":memory:").await?;
/// store.install().await?;
/// let admin = Admin::on(&store);
/// admin.create_queue("mail").await?;
/// Producer::on(&store, "mail", "host-1", 1).await?.batch_enqueue(&["to ada", "spam"]).await?;
///
/// let handle = |mail: Delivery| async move {
///     match mail.json::<String>()?.as_str() {
///         "spam" => Ok::<_, tenure::Error>(Outcome::Bury("spam".into())),
///         _ => Ok(Outcome::Complete),
///     }
/// };
/// let consumer = Consumer::on(&store, "mail", "host-1", 2).await?;
/// let done = async {
///     while admin.get_queue_metrics("mail").await?.total_messages > 0 {
///         tokio::time::sleep(Duration::from_millis(20)).await;
///     }
///     Ok::<_, tenure::Error>(())
/// };
/// let summary = consumer.run(handle).concurrency(8).until(done).await?;
/// assert_eq!((summary.completed, summary.buried), (1, 1));
/// # Ok(())
/// # }
/// ```
#[must_use = "a loop does nothing until it is awaited"]
pub struct Run<'a, H> {
    consumer: &'a Consumer,
    handler: H,
    concurrency: usize,
    prefetch: Option<usize>,
    lease: Option<Duration>,
    retry: RetryPolicy,
    time_limit: Option<Duration>,
    grace: Duration,
    until: BoxFuture<'a, Result<(), String>>,
}

impl<'a, H> Run<'a, H> {
    pub(crate) fn new(consumer: &'a Consumer, handler: H) -> Self {
        Run {
            consumer,
            handler,
            concurrency: 16,
            prefetch: None,
            lease: None,
            retry: RetryPolicy::default(),
            time_limit: None,
            grace: Duration::from_secs(30),
            until: std::future::pending().boxed(),
        }
    }

    /// How many handlers work at the same time.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.concurrency = handlers;
        self
    }

    /// How many messages, or keys with their messages, may wait in this process until a handler is free; as many as there are
    /// handlers by default, so that handlers never wait for the database. With 0 a message is leased only for a handler that is
    /// free: right for long jobs, which would otherwise wait here while another process has nothing to do.
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.prefetch = Some(messages);
        self
    }

    /// How long a handler may take. After that it is dropped where it awaits, its [token](Delivery::lease_lost) is cancelled,
    /// and its message has failed, as with an error. Without a limit the lease of a handler that hangs is extended for ever.
    /// Work that a handler runs elsewhere, as with `spawn_blocking`, goes on until it looks at the token.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// How long a lease lasts; by default as long as the queue's settings say. It is extended while the handler works, so this
    /// is only how long a message waits when this process dies.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How long messages rest after their handler failed.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// How long handlers may go on after the loop was told to stop. Then they are told, ended, and their messages given
    /// back. The loop ends five seconds after that at the latest, also when the database does not answer; what could not be given
    /// back then comes again when its lease ends, and a warning says how many messages these are.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// When to stop: the end of this future, such as `tokio::signal::ctrl_c()`. If it ends with an error the loop stops all the
    /// same, and answers with that error.
    pub fn until<F>(mut self, stop: F) -> Self
    where
        F: Future<Output: Stop> + Send + 'a,
    {
        self.until = stop.map(Stop::stop).boxed();
        self
    }
}

/// How a future that stops a loop may end: with nothing, or with a result, as `tokio::signal::ctrl_c()` does.
pub trait Stop {
    /// Why it could not do its part, if so.
    ///
    /// # Errors
    /// The error's text.
    fn stop(self) -> Result<(), String>;
}

impl Stop for () {
    fn stop(self) -> Result<(), String> {
        Ok(())
    }
}

impl<E: std::fmt::Display> Stop for Result<(), E> {
    fn stop(self) -> Result<(), String> {
        self.map_err(|error| error.to_string())
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
            // Everything that is the caller's is in this future, and `Work` catches its panics: also the call itself, before
            // there is a future, and the text of an error.
            async move { handler(delivery).await.map(Into::into).map_err(|error| error.to_string()) }.boxed()
        });
        let looping = Loop {
            consumer: self.consumer,
            call,
            concurrency: self.concurrency,
            prefetch: self.prefetch,
            lease: self.lease,
            retry: self.retry,
            time_limit: self.time_limit,
            grace: self.grace,
        };
        looping.run(self.until).boxed()
    }
}

/// Half of it to all of it, so that processes do not march in step.
fn jittered(rest: Duration) -> Duration {
    rest.mul_f64(rand::rng().random_range(0.5..1.0))
}
