//! The store: a connected database with its combiners, and the callers that wait for leases.

use std::collections::HashMap;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::calls::Calls;
use crate::clock::Clock;
use crate::combine::{Combiner, Limits};
use crate::db::Db;
use crate::db::postgres::Postgres;
use crate::dsn::Dsn;
use crate::error::{Error, Kind, Result, invalid};
use crate::flush::{enqueue_flush, finish_flush};
use crate::ops::claim::Terms;
use crate::ops::enqueue::{Entry, check, lane_of_key};
use crate::ops::finish::{Finish, Finished, Verb};
use crate::ops::history::{Question, Told, question_flush};
use crate::ops::queue::check_duration;
use crate::ops::turn::{AckedTurn, EndedTurn, turn_ack_flush};
use crate::ops::work::{Ended, ended_flush};
use crate::types::{Answer, Claim, Due, End, Enqueued, Fence, Message, NewMessage, Outcome, Place, Queue, Work};
use crate::vitals::Tallies;
use crate::wait::hub::Hub;
use crate::wait::keys::Keys;
use crate::wait::lease::{Held, Lease, Returns};
use crate::wait::messages::Messages;
use crate::wait::prefetch::Prefetch;
use crate::wait::waiters::{Topic, Waiters};

/// The databases a store can live in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// PostgreSQL 12 or later.
    Postgres,
    /// SQLite, in a file or in memory.
    Sqlite,
    /// The embedded Turso engine.
    Turso,
}

impl Backend {
    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Postgres => "postgres",
            Backend::Sqlite => "sqlite",
            Backend::Turso => "turso",
        }
    }
}

/// A connected database that leases out work. Cheap to clone; the last clone closes it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure_store::Result<()> {
/// use tenure_store::{Answer, Claim, NewMessage, Settings, Store};
///
/// let store = Store::connect(":memory:").await?;
/// store.install().await?;
/// let queue = store.queue_create("mail", Settings::default()).await?;
/// store.enqueue(&queue, None, vec![NewMessage::new("hello")]).await?;
///
/// let messages = store.claim(Claim::from_queue(&queue, 10)).await?;
/// assert_eq!(&messages[0].payload[..], b"hello");
/// assert_eq!(store.complete(&[messages[0].fence()]).await?, [Answer::Done]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    backend: Backend,
    enqueues: Combiner<Entry, Enqueued>,
    finishes: Combiner<Finish, Finished>,
    combiners: Combiners,
    /// Which partition the next batch without a key goes to.
    turn: AtomicUsize,
    /// Queues that were created anew under their name, by the id of the one that callers still hold.
    successors: RwLock<HashMap<i64, Queue>>,
    /// Dropped with the store, and with it the tasks.
    tasks: Mutex<JoinSet<()>>,
}

/// What orchestrations merge: ends and questions of concurrent callers share statements.
pub(crate) struct Combiners {
    pub(crate) turn_acks: Combiner<EndedTurn, AckedTurn>,
    pub(crate) work_acks: Combiner<Ended, bool>,
    pub(crate) questions: Combiner<Question, Told>,
}

impl Combiners {
    fn start(shared: &Arc<Shared>) -> Self {
        Combiners {
            turn_acks: Combiner::start(TURN, &turn_ack_flush(shared.clone())),
            work_acks: Combiner::start(TURN, &ended_flush(shared.clone())),
            questions: Combiner::start(TURN, &question_flush(shared.clone())),
        }
    }
}

/// What the store and the tasks that serve its callers share.
pub(crate) struct Shared {
    pub(crate) hub: Arc<Hub>,
    pub(crate) prefetch: Prefetch<Lease<Held<Work>>>,
    pub(crate) tallies: Tallies,
    pub(crate) calls: Calls,
    /// Leases that may have to be released because their callers have gone.
    pub(crate) returns: Returns,
    claims: Mutex<LaneSets<Messages>>,
    key_claims: Mutex<LaneSets<Keys>>,
}

/// The waiting callers of sets of lanes, for as long as there are any.
struct LaneSets<T: Topic> {
    rooms: HashMap<Vec<i64>, Weak<Waiters<T>>>,
    /// From how many rooms on those without callers are removed.
    full: usize,
}

impl<T: Topic> Default for LaneSets<T> {
    fn default() -> Self {
        LaneSets { rooms: HashMap::new(), full: 64 }
    }
}

impl<T: Topic> LaneSets<T> {
    fn of(&mut self, lanes: &[i64], new: impl FnOnce() -> Arc<Waiters<T>>) -> Arc<Waiters<T>> {
        if let Some(room) = self.rooms.get(lanes).and_then(Weak::upgrade) {
            return room;
        }
        if self.rooms.len() >= self.full {
            self.rooms.retain(|_, room| room.strong_count() > 0);
            self.full = 64.max(2 * self.rooms.len());
        }
        let room = new();
        self.rooms.insert(lanes.to_vec(), Arc::downgrade(&room));
        room
    }

    fn live(&self) -> Vec<Arc<Waiters<T>>> {
        self.rooms.values().filter_map(Weak::upgrade).collect()
    }
}

const ENQUEUE: Limits = Limits { rows: 50_000, kib: 64 * 1024, callers: 20_000, flush: 1000, flushers: 2 };
const FINISH: Limits = Limits { rows: 50_000, kib: 64 * 1024, callers: 20_000, flush: 2000, flushers: 1 };
const TURN: Limits = Limits { rows: 10_000, kib: 64 * 1024, callers: 20_000, flush: 64, flushers: 1 };

impl Store {
    /// Opens the database that the DSN names. Nothing is written: call [`install`](Store::install) for the tables.
    pub async fn connect(dsn: &str) -> Result<Self> {
        Self::connect_with_clock(dsn, Clock::database()).await
    }

    /// The same under a clock of one's own, for tests.
    pub async fn connect_with_clock(dsn: &str, clock: Clock) -> Result<Self> {
        let (db, backend) = match Dsn::from_str(dsn)? {
            Dsn::Postgres(dsn) => (Db::Postgres(Arc::new(Postgres::connect(&dsn).await?)), Backend::Postgres),
            #[cfg(feature = "sqlite")]
            Dsn::Sqlite(dsn) => {
                let open = tokio::task::spawn_blocking(move || crate::db::sqlite::Sqlite::open(&dsn));
                let opened = open.await.map_err(|error| {
                    Error::new(Kind::Closed, "the SQLite database could not be opened").with_source(error)
                })?;
                (Db::Sqlite(Arc::new(opened?)), Backend::Sqlite)
            }
            #[cfg(not(feature = "sqlite"))]
            Dsn::Sqlite(_) => return Err(compiled_out("SQLite", "sqlite")),
            #[cfg(feature = "turso")]
            Dsn::Turso(dsn) => (Db::Turso(Arc::new(crate::db::turso::Turso::open(&dsn).await?)), Backend::Turso),
            #[cfg(not(feature = "turso"))]
            Dsn::Turso(_) => return Err(compiled_out("Turso", "turso")),
        };
        let hub = Arc::new(Hub::new(db, clock));
        let mut tasks = JoinSet::new();
        hub.start(&mut tasks);
        let shared = Arc::new(Shared {
            hub,
            prefetch: Prefetch::default(),
            tallies: Tallies::default(),
            calls: Calls::default(),
            returns: Returns::default(),
            claims: Mutex::default(),
            key_claims: Mutex::default(),
        });
        let inner = Inner {
            enqueues: Combiner::start(ENQUEUE, &enqueue_flush(shared.clone())),
            finishes: Combiner::start(FINISH, &finish_flush(shared.clone())),
            combiners: Combiners::start(&shared),
            shared,
            backend,
            turn: AtomicUsize::new(0),
            successors: RwLock::default(),
            tasks: Mutex::new(tasks),
        };
        Ok(Store { inner: Arc::new(inner) })
    }

    /// Ends the use of an embedded database in an orderly way: calls that were begun finish, later ones fail with `Closed`,
    /// and everything is in the file itself afterwards, its `-wal` file empty or gone, so that the file alone can be copied.
    /// Dropping the last clone does the same for SQLite a moment later; a Turso file is complete then only together with its
    /// log. On PostgreSQL connections end with the last clone.
    ///
    /// # Errors
    /// `Contended` when another process reads the `-wal` file, which then stays, and `FileReplaced` when the file is not at its
    /// path any more. Closing again tries again.
    pub async fn close(&self) -> Result<()> {
        self.abandoned_released().await;
        self.db().close().await
    }

    /// Which database this is.
    pub fn backend(&self) -> Backend {
        self.inner.backend
    }

    pub(crate) fn db(&self) -> &Db {
        &self.inner.shared.hub.db
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.shared.hub.clock
    }

    pub(crate) fn combiners(&self) -> &Combiners {
        &self.inner.combiners
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// A message became ready, with a key or without.
    pub(crate) fn ready(&self, lane: i64, id: i64) {
        self.inner.shared.hub.ready(lane, id);
        self.inner.shared.hub.ready_key(lane, id);
    }

    pub(crate) fn ready_somewhere(&self, lane: i64) {
        self.inner.shared.hub.ready_somewhere(lane);
    }

    /// Enqueues messages, all or none, and answers each with its identity once they are durable.
    ///
    /// A message with a key goes to the key's own lane; the others go together into one lane: that of `partition`, or
    /// the next one in turn. When the queue was deleted and created anew, by any process, they go into the new one.
    pub async fn enqueue(
        &self,
        queue: &Queue,
        partition: Option<u32>,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Enqueued>> {
        let known = self.successor(queue);
        let queue = known.as_ref().unwrap_or(queue);
        let entries = self.entries(queue, partition, messages)?;
        let bytes = entries.iter().map(Entry::bytes).sum();
        // A payload is shared, not copied.
        let again = entries.iter().map(|entry| entry.message.clone()).collect();
        match self.inner.enqueues.call(entries, bytes).await {
            Err(error) if error.kind() == Kind::NotFound => {
                let Some(queue) = self.recreated(queue).await? else { return Err(error) };
                let entries = self.entries(&queue, partition, again)?;
                self.inner.enqueues.call(entries, bytes).await
            }
            enqueued => enqueued,
        }
    }

    /// The queue that is known to have the name of this one, which was deleted and created anew.
    pub fn successor(&self, queue: &Queue) -> Option<Queue> {
        let successors = self.inner.successors.read().unwrap_or_else(PoisonError::into_inner);
        if successors.is_empty() { None } else { successors.get(&queue.id).cloned() }
    }

    /// The queue that has the name of one that is gone; remembered as its [successor](Store::successor), so that only the
    /// first call is refused.
    pub async fn recreated(&self, gone: &Queue) -> Result<Option<Queue>> {
        let found = match self.queue_get(&gone.name).await {
            Ok(found) if found.id != gone.id => found,
            Err(error) if error.kind() != Kind::NotFound => return Err(error),
            _ => return Ok(None),
        };
        self.remember_successor(gone, &found);
        Ok(Some(found))
    }

    pub(crate) fn remember_successor(&self, gone: &Queue, found: &Queue) {
        let mut successors = self.inner.successors.write().unwrap_or_else(PoisonError::into_inner);
        // Callers that hold an older one still find the newest.
        for old in successors.values_mut().filter(|old| old.id == gone.id) {
            *old = found.clone();
        }
        successors.insert(gone.id, found.clone());
    }

    /// Runs a task that ends with the store. It must not hold the store itself.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Checks messages and chooses their lanes.
    pub(crate) fn entries(
        &self,
        queue: &Queue,
        partition: Option<u32>,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Entry>> {
        let lane = match partition {
            Some(partition) => *queue
                .lanes
                .get(partition as usize)
                .ok_or_else(|| invalid(format!("queue '{}' has no partition {partition}", queue.name)))?,
            None => queue.lanes[self.inner.turn.fetch_add(1, Ordering::Relaxed) % queue.lanes.len()],
        };
        let mut entries = Vec::with_capacity(messages.len());
        for message in messages {
            check(&message)?;
            let lane = message.key.as_ref().map_or(lane, |key| lane_of_key(&queue.lanes, key));
            entries.push(Entry { queue: queue.id, lane, message });
        }
        Ok(entries)
    }

    /// Leases messages: at once if there are any, else as soon as there are, else none when the wait is over.
    ///
    /// Messages with keys are never among them: see [`claim_key`](Store::claim_key). A claim from a queue that was deleted ends
    /// with [`Kind::NotFound`] within about a second, also while it waits: see [`recreated`](Store::recreated).
    pub async fn claim(&self, claim: Claim) -> Result<Vec<Message>> {
        claim.lease.map_or(Ok(()), |lease| check_duration("the lease", lease))?;
        if claim.limit == 0 || claim.lanes.is_empty() {
            return Ok(Vec::new());
        }
        let shared = self.shared();
        let terms = Terms { lease: claim.lease, worker: claim.worker };
        let held = shared.messages_of(&claim.lanes).wait(shared, (terms, claim.limit), after(claim.wait)).await?;
        Ok(held.map_or_else(Vec::new, |held| held.keep().it))
    }

    /// Waits until the messages and keys of claims that were dropped before they were answered are released, or could not be
    /// released. A program that ends before that leaves them leased until their leases expire.
    pub async fn abandoned_released(&self) {
        let shared = self.shared();
        let claims = shared.claims.lock().unwrap_or_else(PoisonError::into_inner).live();
        let key_claims = shared.key_claims.lock().unwrap_or_else(PoisonError::into_inner).live();
        for waiters in claims {
            waiters.look_ended().await;
        }
        for waiters in key_claims {
            waiters.look_ended().await;
        }
        shared.returns.wait().await;
    }

    /// Completes messages. One answer each.
    pub async fn complete(&self, fences: &[Fence]) -> Result<Vec<Answer>> {
        self.finish(fences, |_| Verb::Complete).await
    }

    /// Completes messages and keeps no copy, whatever the queue's retention says. One answer each.
    pub async fn discard(&self, fences: &[Fence]) -> Result<Vec<Answer>> {
        let fences: Vec<Fence> = fences.iter().map(|fence| Fence { keep: false, ..*fence }).collect();
        self.finish(&fences, |_| Verb::Complete).await
    }

    /// Gives messages back to their places, at once. Their attempts stay counted.
    pub async fn release(&self, fences: &[Fence]) -> Result<Vec<Answer>> {
        self.finish(fences, |_| Verb::Release { uncount: false }).await
    }

    /// Gives back messages that no caller was given, as if they had not been leased. The next lease has the same position and
    /// attempt, so these fences hold again then: use them for nothing afterwards, and never for a message that a handler has seen.
    pub async fn put_back(&self, fences: &[Fence]) -> Result<Vec<Answer>> {
        self.finish(fences, |_| Verb::Release { uncount: true }).await
    }

    /// Gives messages back to be leased again: at once or when due, at their place or at the tail.
    pub async fn retry(&self, fences: &[Fence], due: Option<Due>, place: Place) -> Result<Vec<Answer>> {
        let verb = retry_verb(due, place)?;
        self.finish(fences, |_| verb.clone()).await
    }

    /// Gives messages back to be leased again after `rest`; the delivery does not count as an attempt. A message stands behind
    /// those that are ready when it is due, and one with a key keeps its place among those of its key.
    pub async fn snooze(&self, fences: &[Fence], rest: Duration) -> Result<Vec<Answer>> {
        check_duration("the rest", rest)?;
        // The next lease has the same attempt. At the same position it would have the same fence too, and a late holder of this
        // one could end it. The fence of a message with a key has the token of the key's lease besides.
        let verb = |fence: &Fence| {
            let keep_place = fence.token().is_some();
            Verb::Postpone { due: Due::In(rest), keep_place, uncount: true }
        };
        self.finish(fences, verb).await
    }

    /// Buries messages: into the dead queue if there is one, else into the archive.
    pub async fn bury(&self, fences: &[Fence], reason: &str) -> Result<Vec<Answer>> {
        self.bury_counting(fences, reason, false).await
    }

    /// The same for messages that nobody ever looked at: the lease under which they are buried was not a delivery.
    pub async fn bury_unseen(&self, fences: &[Fence], reason: &str) -> Result<Vec<Answer>> {
        self.bury_counting(fences, reason, true).await
    }

    async fn bury_counting(&self, fences: &[Fence], reason: &str, uncount: bool) -> Result<Vec<Answer>> {
        crate::ops::check_label("the reason", Some(reason))?;
        let bury = |_: &Fence| Verb::Bury { outcome: Outcome::Dead, reason: reason.to_owned(), uncount };
        self.finish(fences, bury).await
    }

    /// Ends leases one after the other, each in its own way, until one cannot be: those before it stay done, those after
    /// it are [`Skipped`](Answer::Skipped). One answer each.
    pub async fn finish_in_order(&self, items: Vec<(Fence, End)>) -> Result<Vec<Answer>> {
        let mut chain = Vec::with_capacity(items.len());
        for (fence, end) in items {
            let mortal = matches!(end, End::Retry { .. });
            let (keep, verb) = match end {
                End::Complete => (fence.keep, Verb::Complete),
                End::Discard => (false, Verb::Complete),
                End::Retry { due, place } => (fence.keep, retry_verb(due, place)?),
                End::Bury { reason } => {
                    crate::ops::check_label("the reason", Some(&reason))?;
                    (fence.keep, Verb::Bury { outcome: Outcome::Dead, reason, uncount: false })
                }
            };
            chain.push(Finish { chained: !chain.is_empty(), mortal, ..Finish::new(Fence { keep, ..fence }, verb) });
        }
        let bytes = chain.len() * std::mem::size_of::<Finish>();
        let finished = self.inner.finishes.call(chain, bytes).await?;
        Ok(finished.into_iter().map(|finished| finished.answer).collect())
    }

    async fn finish(&self, fences: &[Fence], verb: impl Fn(&Fence) -> Verb) -> Result<Vec<Answer>> {
        Ok(self.finish_raw(fences, verb).await?.into_iter().map(|finished| finished.answer).collect())
    }

    pub(crate) async fn finish_raw(&self, fences: &[Fence], verb: impl Fn(&Fence) -> Verb) -> Result<Vec<Finished>> {
        let items: Vec<Finish> = fences.iter().map(|fence| Finish::new(*fence, verb(fence))).collect();
        let bytes = items.len() * std::mem::size_of::<Finish>();
        self.inner.finishes.call(items, bytes).await
    }
}

fn retry_verb(due: Option<Due>, place: Place) -> Result<Verb> {
    Ok(match (due, place) {
        (None, Place::Keep) => Verb::Release { uncount: false },
        (None, Place::Tail) => Verb::Requeue,
        (Some(due), place) => {
            if let Due::In(delay) = due {
                check_duration("the delay", delay)?;
            }
            Verb::Postpone { due, keep_place: place == Place::Keep, uncount: false }
        }
    })
}

/// The end of a wait, which may be longer than the clock can count.
pub(crate) fn after(wait: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    Instant::now() + wait.min(CENTURY)
}

#[cfg(not(all(feature = "sqlite", feature = "turso")))]
fn compiled_out(backend: &str, feature: &str) -> Error {
    let message = format!("{backend} is not compiled into this program: build it with the feature '{feature}'");
    Error::new(Kind::Unsupported, message)
}

impl Shared {
    fn messages_of(&self, lanes: &[i64]) -> Arc<Waiters<Messages>> {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.of(lanes, || Messages::of(&self.hub, lanes))
    }

    pub(crate) fn keys_of(&self, lanes: &[i64]) -> Arc<Waiters<Keys>> {
        let mut key_claims = self.key_claims.lock().unwrap_or_else(PoisonError::into_inner);
        key_claims.of(lanes, || Keys::of(&self.hub, lanes))
    }

    /// Wakes whoever waits for what a verb made ready.
    pub(crate) fn announce(&self, finished: &[Finished]) {
        for finished in finished {
            if let Some((lane, id)) = finished.ready {
                self.hub.ready(lane, id);
            }
            if let Some(lane) = finished.due {
                self.hub.due(lane);
            }
            if let Some((lane, remaining)) = finished.expires {
                self.hub.lane(lane).state().cursor.expect(self.hub.steady().saturating_add(remaining));
            }
        }
    }
}
