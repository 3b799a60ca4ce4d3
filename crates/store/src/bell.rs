//! Where fetches of turns and activities wait until something may be there for them.
//!
//! Invariants: a wait ends early only with something in hand, or when it heeds a dismissal; what this process made ready wakes one waiter that can take
//! it, at once; of all that wait, one leads, and it alone looks when a time comes (a timer, a delayed try, a lease that
//! runs out) or when nothing has been heard for a while, so that an idle process asks next to nothing however many wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::error::Result;
use crate::wake::Hub;

/// After how long without a message it is quiet enough to ask what will come.
const QUIET: Duration = Duration::from_millis(20);
/// How soon a waiter looks again when messages wait behind somebody's turn: at first, and at most.
const BLOCKED_FIRST: Duration = Duration::from_millis(20);
const BLOCKED_MOST: Duration = Duration::from_millis(500);
/// How much further back it is asked, for clocks that do not run alike.
const SLACK: Duration = Duration::from_millis(20);
/// A process's clock and the database's drift apart by less than this while a time is awaited.
const GRACE: Duration = Duration::from_millis(1);

/// How long before a wait began it may have been dismissed. A worker's decision to fetch without sessions is a moment older
/// than its fetch, and the capacity may have become free in between.
const DISMISSED_BEFORE: Duration = Duration::from_millis(10);

/// Whether a wait ends without a result when it is dismissed.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Dismissal {
    Heeded,
    Ignored,
}

/// What will come, if nothing happens before.
pub(crate) struct Next {
    pub(crate) after: Option<Duration>,
    /// Whether something is there that somebody else must let go of first.
    pub(crate) blocked: bool,
}

/// Waiters of one kind, in classes that want the same.
pub(crate) struct Bell<K> {
    classes: Mutex<Vec<(K, Weak<Class>)>>,
    leader: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    earlier: Notify,
    /// When the waits that heed it were last dismissed.
    dismissed: watch::Sender<Option<Instant>>,
}

#[derive(Default)]
struct Class {
    woken: Notify,
    /// Somebody else's process made something ready, nobody knows how much: whoever finds something wakes the next.
    chain: AtomicBool,
}

struct State {
    /// When there will be something, and whether the database was asked since the last look.
    next: Option<Instant>,
    asked: bool,
    looked: Instant,
    pause: Duration,
}

impl<K: Clone + PartialEq> Bell<K> {
    pub(crate) fn new() -> Self {
        let state = State { next: None, asked: false, looked: Instant::now(), pause: BLOCKED_FIRST };
        Bell {
            classes: Mutex::default(),
            leader: tokio::sync::Mutex::default(),
            state: Mutex::new(state),
            earlier: Notify::new(),
            dismissed: watch::Sender::new(None),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn class(&self, key: &K) -> Arc<Class> {
        let mut classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(class) = classes.iter().find(|(known, _)| known == key).and_then(|(_, class)| class.upgrade()) {
            return class;
        }
        classes.retain(|(_, class)| class.strong_count() > 0);
        let class = Arc::<Class>::default();
        classes.push((key.clone(), Arc::downgrade(&class)));
        class
    }

    fn each(&self, wanted: impl Fn(&K) -> bool, ring: impl Fn(&Class)) {
        let classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        for class in classes.iter().filter(|(key, _)| wanted(key)).filter_map(|(_, class)| class.upgrade()) {
            ring(&class);
        }
    }

    /// Something is there for one waiter of every class that wants it.
    pub(crate) fn ring(&self, wanted: impl Fn(&K) -> bool) {
        self.each(wanted, |class| class.woken.notify_one());
    }

    /// Something is there that only a certain waiter may take.
    pub(crate) fn ring_all(&self, wanted: impl Fn(&K) -> bool) {
        self.each(wanted, |class| class.woken.notify_waiters());
    }

    /// Another process made something ready.
    pub(crate) fn ring_chain(&self) {
        self.each(
            |_| true,
            |class| {
                class.chain.store(true, Ordering::Relaxed);
                class.woken.notify_one();
            },
        );
    }

    /// Something will be there after `delay`.
    pub(crate) fn expect(&self, delay: Duration) {
        let Some(at) = Instant::now().checked_add(delay + GRACE) else { return };
        let mut state = self.state();
        if state.next.is_none_or(|next| at < next) {
            state.next = Some(at);
            self.earlier.notify_one();
        }
    }

    /// Ends the waits that heed it: their callers could now ask for something else. One that has just begun looks once, and
    /// ends then.
    pub(crate) fn dismiss(&self) {
        self.dismissed.send_replace(Some(Instant::now()));
    }

    /// Returns when a wait that began then is dismissed.
    async fn dismissal(&self, dismissal: Dismissal, began: Instant) {
        let mut dismissed = self.dismissed.subscribe();
        let concerns = |at: &Option<Instant>| at.is_some_and(|at| at + DISMISSED_BEFORE > began);
        if dismissal == Dismissal::Ignored || dismissed.wait_for(concerns).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Looks until something is found, the time is up or the wait is dismissed. `next` asks the database what will come,
    /// and what came within the given time.
    pub(crate) async fn wait<T, L, N>(
        &self,
        hub: &Hub,
        key: &K,
        until: Instant,
        dismissal: Dismissal,
        mut look: impl FnMut() -> L + Send,
        next: impl Fn(Duration) -> N + Send + Sync,
    ) -> Result<Option<T>>
    where
        L: Future<Output = Result<Option<T>>> + Send,
        N: Future<Output = Result<Next>> + Send,
    {
        let class = self.class(key);
        let dismissed = self.dismissal(dismissal, Instant::now());
        tokio::pin!(dismissed);
        let mut clock_moved = hub.clock.watch();
        let _waiting = (until > Instant::now()).then(|| hub.wait());
        loop {
            let woken = class.woken.notified();
            tokio::pin!(woken);
            // From now on nothing that becomes ready goes unnoticed, whatever the look misses. What was announced before,
            // while nobody waited, is what this look is for: it must not cause another one.
            while woken.as_mut().enable() {
                woken.set(class.woken.notified());
            }
            // Taken before the look: what another process announces during it is not this look's to forget (it was, and
            // then woke one waiter instead of all that could take something).
            let chained = class.chain.swap(false, Ordering::Relaxed);
            let looked = Instant::now();
            if let Some(found) = look().await? {
                self.state().pause = BLOCKED_FIRST;
                if chained || class.chain.load(Ordering::Relaxed) {
                    class.chain.store(true, Ordering::Relaxed);
                    class.woken.notify_one();
                }
                return Ok(Some(found));
            }
            self.state().asked = false;
            if Instant::now() >= until {
                return Ok(None);
            }
            tokio::select! {
                () = woken => {}
                result = self.lead(hub, looked, &next) => result?,
                () = clock_moved.wait() => {}
                () = &mut dismissed => return Ok(None),
                () = tokio::time::sleep_until(until) => return Ok(None),
            }
        }
    }

    /// Waits as the one who leads until it is time to look; for ever while another one leads.
    async fn lead<N: Future<Output = Result<Next>> + Send>(
        &self,
        hub: &Hub,
        looked: Instant,
        next: impl Fn(Duration) -> N,
    ) -> Result<()> {
        let _leader = self.leader.lock().await;
        loop {
            let earlier = self.earlier.notified();
            let (at, ask) = self.rest(hub);
            tokio::select! {
                () = tokio::time::sleep_until(at) => {}
                () = earlier => continue,
            }
            if ask {
                // What fell due between the look and this question is in neither of them, unless it is asked for: a lease that
                // ran out in those 20 ms was met four seconds late.
                self.plan(&next(looked.elapsed() + SLACK).await?);
                continue;
            }
            let due = {
                let mut state = self.state();
                state.looked = Instant::now();
                state.next.take_if(|next| *next <= Instant::now())
            };
            if due.is_some() {
                // What is due may be for somebody else: another version, another tag, the owner of a session.
                self.ring_all(|_| true);
            }
            return Ok(());
        }
    }

    /// Until when the leader has nothing to do, and whether it then asks instead of looking.
    fn rest(&self, hub: &Hub) -> (Instant, bool) {
        let state = self.state();
        let poll = state.looked + hub.quiet_interval();
        let look = state.next.map_or(poll, |next| next.min(poll));
        let ask = Instant::now() + QUIET;
        if state.asked || look <= ask { (look, false) } else { (ask, true) }
    }

    fn plan(&self, next: &Next) {
        let again = next.blocked.then(|| {
            let mut state = self.state();
            let pause = state.pause;
            state.pause = (pause * 2).min(BLOCKED_MOST);
            pause
        });
        if let Some(after) = next.after.into_iter().chain(again).min() {
            self.expect(after);
        }
        self.state().asked = true;
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use std::str::FromStr as _;
    use std::sync::atomic::AtomicUsize;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::clock::Clock;
    use crate::db::Db;
    use crate::db::sqlite::Sqlite;
    use crate::dsn::Dsn;

    fn hub() -> Arc<Hub> {
        let Ok(Dsn::Sqlite(dsn)) = Dsn::from_str(":memory:") else { panic!("a DSN of SQLite") };
        let sqlite = Sqlite::open(&dsn).expect("a database in memory");
        Arc::new(Hub::new(Db::Sqlite(Arc::new(sqlite)), Clock::database()))
    }

    #[tokio::test]
    async fn a_notification_that_comes_during_a_look_wakes_every_waiter_that_can_take_something() {
        let (hub, bell) = (hub(), Arc::new(Bell::<()>::new()));
        let items = Arc::new(AtomicUsize::new(0));
        let looks = Arc::new(AtomicUsize::new(0));
        let take = |items: &AtomicUsize| {
            items.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).ok()
        };
        let waiter = || {
            let (hub, bell, items, looks) = (hub.clone(), bell.clone(), items.clone(), looks.clone());
            tokio::spawn(async move {
                let look = || {
                    let found = take(&items);
                    // Two items are announced while the second waiter has looked already and found nothing.
                    if looks.fetch_add(1, Ordering::Relaxed) == 1 {
                        items.store(2, Ordering::Relaxed);
                        bell.ring_chain();
                    }
                    async move { Ok(found) }
                };
                let next = |_| async { Ok(Next { after: None, blocked: false }) };
                let until = Instant::now() + Duration::from_millis(500);
                bell.wait(&hub, &(), until, Dismissal::Ignored, look, next).await
            })
        };
        let (first, second) = (waiter(), waiter());
        for waiter in [first, second] {
            assert!(waiter.await.expect("a waiter").expect("a look").is_some(), "a waiter was not woken");
        }
    }

    #[tokio::test]
    async fn a_dismissal_ends_waits_that_heed_it_and_those_that_begin_just_after_it() {
        let bell = Bell::<()>::new();
        let began = Instant::now();
        let mut waiting = Box::pin(bell.dismissal(Dismissal::Heeded, began));
        assert!(waiting.as_mut().now_or_never().is_none());
        bell.dismiss();
        assert!(waiting.now_or_never().is_some());
        assert!(bell.dismissal(Dismissal::Heeded, began + DISMISSED_BEFORE / 2).now_or_never().is_some());
        assert!(bell.dismissal(Dismissal::Heeded, Instant::now() + DISMISSED_BEFORE).now_or_never().is_none());
        assert!(bell.dismissal(Dismissal::Ignored, began).now_or_never().is_none());
    }
}
