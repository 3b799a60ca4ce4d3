//! "Something may be ready": in this process at once, in others by NOTIFY or by looking, and polling as the truth.
//!
//! Invariants: nothing here decides anything, a wake-up only says when to look; NOTIFY is never sent inside a write
//! transaction of ours (it cuts 15k/s to 4.8k/s) but by one task per process, at most once per 5 ms; when the listening
//! connection is lost everybody polls, and polls at once when it is back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rand::Rng as _;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::db::Db;
use crate::db::postgres::Postgres;
use crate::error::Kind;
use crate::types::Micros;
use crate::wait::cursor::Cursor;
use crate::wait::keys::Keys;
use crate::wait::messages::Messages;
use crate::wait::news::{self, News, Outbox, Topic};
use crate::wait::turns::Turns;
use crate::wait::waiters::{self, Waiters};
use crate::wait::work::Activities;

/// The least time between two NOTIFYs of a process.
const NOTIFY_EVERY: Duration = Duration::from_millis(5);
/// How often it is looked up whether another process listens at all.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// How often another process's commits are looked for in a SQLite file, while somebody waits.
#[cfg(feature = "sqlite")]
const WATCH_EVERY: Duration = Duration::from_millis(4);
/// How often a waiting process looks by itself; see [`crate::wait::cursor`] for the scans that this drives.
pub(crate) const POLL_EVERY: Duration = Duration::from_secs(1);
/// The same while the listening connection is down.
const POLL_DEAF: Duration = Duration::from_millis(200);
/// From how many held turns on those that were never ended are looked for.
const MANY_TURNS: usize = 1024;

/// What the parts of a store share: the database, the clock, what is known about lanes, and who waits for them.
pub(crate) struct Hub {
    pub(crate) db: Db,
    pub(crate) clock: Clock,
    pub(crate) turns: Arc<Waiters<Turns>>,
    pub(crate) work: Arc<Waiters<Activities>>,
    held_turns: Mutex<HashMap<String, HeldTurn>>,
    /// Whether activities of sessions may wait: then fetches of different owners cannot be merged.
    pub(crate) sessions: AtomicBool,
    lanes: Mutex<HashMap<i64, Arc<Lane>>>,
    /// Topics whose callers wait, so that watching costs nothing while there are none.
    waiting: AtomicUsize,
    someone_waits: Notify,
    outbox: Mutex<Outbox>,
    outbox_filled: Notify,
    /// Whether the listening connection is up, and whether it has been lost.
    listens: AtomicBool,
    deaf: AtomicBool,
    started: Instant,
    /// Tells our own NOTIFYs from those of others.
    me: u64,
}

/// An instance that this process holds: until when, and whether messages came for it meanwhile.
struct HeldTurn {
    until: Instant,
    more: bool,
}

/// What this process knows about a lane.
pub(crate) struct Lane {
    pub(crate) id: i64,
    state: Mutex<LaneState>,
}

pub(crate) struct LaneState {
    pub(crate) cursor: Cursor,
    /// When the next scheduled message is due, and when that was last looked up.
    pub(crate) due: Option<Micros>,
    pub(crate) due_known_until: Micros,
    /// Whether expired leases go to the tail, and how long leases last by default.
    pub(crate) tail: bool,
    pub(crate) lease: Micros,
    /// Whether this process is burying a backlog of dead messages here, which claims then skip.
    pub(crate) burying: bool,
    /// Claims that wait for messages here, and claims of keys.
    pub(crate) claims: Rooms<Messages>,
    pub(crate) key_claims: Rooms<Keys>,
    /// Faces that park their callers themselves.
    watches: Vec<Weak<Notify>>,
}

/// The waiting callers of every set of lanes that this lane belongs to.
pub(crate) struct Rooms<T: waiters::Topic>(Vec<Weak<Waiters<T>>>);

impl<T: waiters::Topic> Rooms<T> {
    pub(crate) fn add(&mut self, waiters: &Arc<Waiters<T>>) {
        self.0.retain(|known| known.strong_count() > 0);
        self.0.push(Arc::downgrade(waiters));
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = Arc<Waiters<T>>> {
        self.0.iter().filter_map(Weak::upgrade)
    }
}

impl Lane {
    pub(crate) fn state(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hub {
    pub(crate) fn new(db: Db, clock: Clock) -> Self {
        let (turns, work) = (Waiters::new(Turns::new(&clock)), Waiters::new(Activities::new(&clock)));
        Hub {
            db,
            clock,
            turns,
            work,
            held_turns: Mutex::default(),
            sessions: true.into(),
            lanes: Mutex::default(),
            waiting: AtomicUsize::new(0),
            someone_waits: Notify::new(),
            outbox: Mutex::default(),
            outbox_filled: Notify::new(),
            listens: false.into(),
            deaf: false.into(),
            started: Instant::now(),
            me: rand::rng().random(),
        }
    }

    /// A steady clock for deadlines of this process: the fixed clock in tests, else time since the store was opened.
    pub(crate) fn steady(&self) -> Micros {
        self.clock.fixed_now().unwrap_or_else(|| crate::clock::micros(self.started.elapsed()))
    }

    /// When a lease that was just given ends, on the steady clock.
    pub(crate) fn deadline(&self, lane: &LaneState, lease: Option<Duration>, leased_until: Micros) -> Micros {
        match self.clock.fixed_now() {
            Some(_) => leased_until,
            None => self.steady().saturating_add(lease.map_or(lane.lease, crate::clock::micros)),
        }
    }

    pub(crate) fn lane(&self, id: i64) -> Arc<Lane> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let exact = self.clock.fixed_now().is_some();
        let new = || {
            let state = LaneState {
                cursor: Cursor::new(exact),
                due: None,
                due_known_until: Micros::MIN,
                tail: false,
                lease: 0,
                burying: false,
                claims: Rooms(Vec::new()),
                key_claims: Rooms(Vec::new()),
                watches: Vec::new(),
            };
            Arc::new(Lane { id, state: Mutex::new(state) })
        };
        lanes.entry(id).or_insert_with(new).clone()
    }

    /// Registers a watch to be woken when something becomes ready in a lane.
    pub(crate) fn subscribe(&self, lane: &Lane, watch: &Arc<Notify>) {
        let mut state = lane.state();
        state.watches.retain(|known| known.strong_count() > 0);
        state.watches.push(Arc::downgrade(watch));
    }

    /// A message without a key became ready at this position, by a commit of this process.
    pub(crate) fn ready(&self, lane: i64, id: i64) {
        self.ready_here(lane, |state| state.cursor.lower(id));
        self.tell_others(Topic::Lane(lane), News::ready_at(id));
    }

    /// A key can be leased that was held or had no messages.
    pub(crate) fn key_is_free(&self, lane: i64) {
        self.key_ready_here(lane);
        self.tell_others(Topic::Lane(lane), News::anywhere());
    }

    /// A message with a key became ready.
    pub(crate) fn ready_key(&self, lane: i64, id: i64) {
        self.key_ready_here(lane);
        self.tell_others(Topic::Lane(lane), News::ready_at(id));
    }

    fn tell_others(&self, topic: Topic, news: News) {
        if matches!(self.db, Db::Postgres(_)) {
            self.outbox.lock().unwrap_or_else(PoisonError::into_inner).add(topic, news);
            self.outbox_filled.notify_one();
        }
    }

    /// Something may have become ready somewhere in this lane, with a key or without.
    pub(crate) fn ready_somewhere(&self, lane: i64) {
        self.ready_here(lane, |state| state.cursor.rewind());
        self.key_ready_here(lane);
        self.tell_others(Topic::Lane(lane), News::anywhere());
    }

    /// A message of this lane will be ready later: claims that wait must look up when.
    pub(crate) fn due(&self, lane: i64) {
        self.ready_here(lane, |state| state.due_known_until = Micros::MIN);
        self.key_ready_here(lane);
        self.tell_others(Topic::Lane(lane), News::anywhere());
    }

    fn key_ready_here(&self, lane: i64) {
        self.lane(lane).state().key_claims.live().for_each(|waiters| waiters.wake());
    }

    fn ready_here(&self, lane: i64, change: impl FnOnce(&mut LaneState)) {
        let lane = self.lane(lane);
        let mut state = lane.state();
        change(&mut state);
        state.claims.live().for_each(|waiters| waiters.wake());
        state.watches.iter().filter_map(Weak::upgrade).for_each(|watch| watch.notify_one());
    }

    /// A message for an instance can be seen. While this process holds the instance nobody else can take it: it is
    /// announced when the turn ends.
    pub(crate) fn turn_ready(&self, instance: &str) {
        if let Some(held) = self.held_turns().get_mut(instance)
            && held.until > Instant::now()
        {
            held.more = true;
            return;
        }
        self.turns.wake_one(|_| true);
        self.tell_others(Topic::Turns, News::anywhere());
    }

    /// A message will be seen after `delay`.
    pub(crate) fn turn_later(&self, delay: Duration) {
        self.turns.topic.times.expect(delay);
        self.tell_others(Topic::Turns, News::anywhere());
    }

    /// This process holds an instance.
    pub(crate) fn turn_begins(&self, instance: &str, lease: Duration) {
        let now = Instant::now();
        let mut held = self.held_turns();
        if held.len() >= MANY_TURNS {
            // Turns that were never ended: their leases have run out.
            held.retain(|_, turn| turn.until > now);
        }
        held.insert(instance.to_owned(), HeldTurn { until: now + lease, more: false });
    }

    /// It does so no longer; `more` messages wait for it, or came meanwhile.
    pub(crate) fn turn_ends(&self, instance: &str, more: bool) {
        let held = self.held_turns().remove(instance);
        if more || held.is_some_and(|held| held.more) {
            self.turn_ready(instance);
        }
    }

    fn held_turns(&self) -> MutexGuard<'_, HashMap<String, HeldTurn>> {
        self.held_turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An activity can be taken by those who take its tag.
    pub(crate) fn work_ready(&self, tag: Option<&str>, session: bool) {
        if session {
            self.sessions.store(true, Ordering::Relaxed);
            // Only the session's owner may take it, and nobody here knows who that is.
            self.work.wake_those(|claim| claim.session.is_some() && claim.filter.accepts(tag));
        } else {
            self.work.wake_one(|claim| claim.filter.accepts(tag));
        }
        self.tell_others(if session { Topic::Sessions } else { Topic::Work }, News::anywhere());
    }

    /// An activity was given back, for now or for later.
    pub(crate) fn work_in(&self, delay: Duration) {
        if delay.is_zero() {
            self.work.wake();
        } else {
            self.work.topic.times.expect(delay);
        }
        self.tell_others(Topic::Sessions, News::anywhere());
    }

    /// Anything may have happened anywhere: look everywhere.
    pub(crate) fn wake_all(&self) {
        self.turns.wake();
        self.work.wake();
        let lanes: Vec<_> = {
            let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            lanes.values().cloned().collect()
        };
        for lane in lanes {
            self.ready_here(lane.id, |state| {
                state.cursor.rewind();
                state.due_known_until = Micros::MIN;
            });
            self.key_ready_here(lane.id);
        }
    }

    /// How long those who wait for turns and activities rest when they expect nothing and would hear of everything.
    pub(crate) fn quiet_interval(&self) -> Duration {
        if self.deaf.load(Ordering::Relaxed) { self.poll_interval() } else { 4 * self.poll_interval() }
    }

    /// How long callers may rest when nothing is expected: jittered, so that processes do not march in step.
    pub(crate) fn poll_interval(&self) -> Duration {
        let base = if self.deaf.load(Ordering::Relaxed) { POLL_DEAF } else { POLL_EVERY };
        base.mul_f64(rand::rng().random_range(0.75..1.0))
    }

    /// How long somebody who waits for lanes may sleep if nothing wakes him: until something is due there, a lease has run
    /// out, or it is time to look anyway.
    pub(crate) fn rest(&self, lanes: &[Arc<Lane>]) -> Duration {
        let sleep = self.poll_interval();
        if self.clock.stands() {
            return sleep;
        }
        let known = lanes.iter().map(|lane| {
            let state = lane.state();
            state.cursor.wakes_at().min(state.due.unwrap_or(Micros::MAX))
        });
        let next = known.min().unwrap_or(Micros::MAX).saturating_sub(self.steady());
        sleep.min(Duration::from_micros(u64::try_from(next).unwrap_or(0)))
    }

    /// Says that callers wait, for as long as the answer lives.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.someone_waits.notify_waiters();
        Waiting(self)
    }

    async fn until_someone_waits(&self) {
        loop {
            let woken = self.someone_waits.notified();
            if self.waiting.load(Ordering::Relaxed) > 0 {
                return;
            }
            woken.await;
        }
    }

    /// Starts what keeps this process and the others informed of each other.
    pub(crate) fn start(self: &Arc<Self>, tasks: &mut tokio::task::JoinSet<()>) {
        match &self.db {
            Db::Postgres(db) => {
                tasks.spawn(notifier(self.clone(), db.clone()));
                tasks.spawn(listener(self.clone(), db.clone()));
            }
            #[cfg(feature = "sqlite")]
            Db::Sqlite(db) if db.is_file() => {
                tasks.spawn(watcher(self.clone(), db.clone()));
            }
            #[cfg(any(feature = "sqlite", feature = "turso"))]
            _ => {}
        }
    }
}

/// See [`Hub::wait`].
pub(crate) struct Waiting<'a>(&'a Hub);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) fn channel(schema: &str) -> String {
    // A channel's name has at most 63 bytes.
    let name = format!("tenure:{schema}");
    name.chars()
        .scan(0, |len, c| {
            *len += c.len_utf8();
            (*len < 64).then_some(c)
        })
        .collect()
}

/// Sends what has become ready to the other processes, if there are any: whether somebody else listens is looked up
/// once a second, and one who begins to listen meanwhile polls anyway.
async fn notifier(hub: Arc<Hub>, db: Arc<Postgres>) {
    let channel = channel(&db.schema);
    let mut counted: Option<(Instant, bool)> = None;
    loop {
        hub.outbox_filled.notified().await;
        let ready = std::mem::take(&mut *hub.outbox.lock().unwrap_or_else(PoisonError::into_inner));
        if ready.is_empty() {
            continue;
        }
        let others = match counted {
            Some((at, others)) if at.elapsed() < COUNT_EVERY => others,
            _ => {
                let mine = i64::from(hub.listens.load(Ordering::Relaxed));
                // When in doubt, somebody listens.
                let others = db.listeners(&channel).await.map_or(true, |count| count > mine);
                counted = Some((Instant::now(), others));
                others
            }
        };
        if !others {
            tokio::time::sleep(NOTIFY_EVERY).await;
            continue;
        }
        for payload in ready.payloads(hub.me) {
            if let Err(error) = db.notify(&channel, &payload).await {
                // Polling is the truth: others will find the messages within a second.
                tracing::debug!(%error, "a NOTIFY was lost");
            }
        }
        tokio::time::sleep(NOTIFY_EVERY).await;
    }
}

async fn listener(hub: Arc<Hub>, db: Arc<Postgres>) {
    let channel = channel(&db.schema);
    let mut pause = Duration::from_millis(100);
    loop {
        hub.until_someone_waits().await;
        match db.listen(&channel).await {
            Ok(mut listener) => {
                pause = Duration::from_millis(100);
                hub.listens.store(true, Ordering::Relaxed);
                hub.deaf.store(false, Ordering::Relaxed);
                hub.wake_all();
                while let Some(note) = listener.next().await {
                    news::heard(&note, hub.me).into_iter().for_each(|(topic, news)| heard(&hub, topic, news));
                }
                tracing::warn!("the LISTEN connection was lost: polling until it is back");
            }
            Err(error) if error.kind() == Kind::Unsupported => {
                tracing::info!(%error, "no LISTEN here: polling");
                hub.deaf.store(true, Ordering::Relaxed);
                return;
            }
            Err(error) => tracing::warn!(%error, "cannot LISTEN: polling until it works"),
        }
        hub.listens.store(false, Ordering::Relaxed);
        hub.deaf.store(true, Ordering::Relaxed);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

fn heard(hub: &Hub, topic: Topic, news: News) {
    match topic {
        Topic::Turns => hub.turns.wake(),
        Topic::Work => hub.work.wake(),
        Topic::Sessions => {
            hub.sessions.store(true, Ordering::Relaxed);
            hub.work.wake();
        }
        Topic::Lane(lane) => {
            hub.ready_here(lane, |state| {
                if let Some(lowest) = news.lowest {
                    state.cursor.lower(lowest);
                }
                if news.anywhere {
                    state.cursor.rewind();
                    state.due_known_until = Micros::MIN;
                }
            });
            hub.key_ready_here(lane);
        }
    }
}

#[cfg(feature = "sqlite")]
async fn watcher(hub: Arc<Hub>, db: Arc<crate::db::sqlite::Sqlite>) {
    let mut known = None;
    loop {
        hub.until_someone_waits().await;
        match db.data_version().await {
            Ok(version) => {
                if known.replace(version).is_some_and(|known| known != version) {
                    hub.wake_all();
                }
            }
            Err(error) => tracing::warn!(%error, "cannot see what other processes write to this SQLite file"),
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_name_fits_whatever_the_schema() {
        assert_eq!(channel("tenure"), "tenure:tenure");
        assert!(channel(&"é".repeat(31)).len() < 64);
    }
}
