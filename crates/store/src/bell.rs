//! Where fetches of turns and activities wait until something may be there for them.
//!
//! Invariants: a wait ends early only with something in hand; what this process made ready wakes one waiter that can take
//! it, at once; of all that wait, one leads, and it alone looks when a time comes (a timer, a delayed try, a lease that
//! runs out) or when nothing has been heard for a while, so that an idle process asks next to nothing however many wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::Result;
use crate::wake::Hub;

/// How soon a waiter looks again when messages wait behind somebody's turn: at first, and at most.
const BLOCKED_FIRST: Duration = Duration::from_millis(5);
const BLOCKED_MOST: Duration = Duration::from_millis(500);
/// A process's clock and the database's drift apart by less than this while a time is awaited.
const GRACE: Duration = Duration::from_millis(1);

/// What a look found.
pub(crate) enum Look<T> {
    Found(T),
    /// Nothing that can be had now.
    Nothing {
        /// When there will be something, if nothing happens before.
        next: Option<Duration>,
        /// Whether there is something that somebody else must let go of first.
        blocked: bool,
    },
}

/// Waiters of one kind, in classes that want the same.
pub(crate) struct Bell<K> {
    classes: Mutex<Vec<(K, Weak<Class>)>>,
    leader: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    earlier: Notify,
}

#[derive(Default)]
struct Class {
    woken: Notify,
    /// Somebody else's process made something ready, nobody knows how much: whoever finds something wakes the next.
    chain: AtomicBool,
}

struct State {
    /// When there will be something.
    next: Option<Instant>,
    looked: Instant,
    pause: Duration,
}

impl<K: Clone + PartialEq> Bell<K> {
    pub(crate) fn new() -> Self {
        let state = State { next: None, looked: Instant::now(), pause: BLOCKED_FIRST };
        Bell {
            classes: Mutex::default(),
            leader: tokio::sync::Mutex::default(),
            state: Mutex::new(state),
            earlier: Notify::new(),
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

    /// Looks until something is found or the time is up.
    pub(crate) async fn wait<T, F: Future<Output = Result<Look<T>>> + Send>(
        &self,
        hub: &Hub,
        key: &K,
        until: Instant,
        mut look: impl FnMut() -> F + Send,
    ) -> Result<Option<T>> {
        let class = self.class(key);
        let mut clock_moved = hub.clock.watch();
        let _waiting = (until > Instant::now()).then(|| hub.wait());
        loop {
            let woken = class.woken.notified();
            tokio::pin!(woken);
            // From now on nothing that becomes ready goes unnoticed, whatever the look misses.
            woken.as_mut().enable();
            match look().await? {
                Look::Found(found) => {
                    self.state().pause = BLOCKED_FIRST;
                    if class.chain.load(Ordering::Relaxed) {
                        class.woken.notify_one();
                    }
                    return Ok(Some(found));
                }
                Look::Nothing { next, blocked } => {
                    class.chain.store(false, Ordering::Relaxed);
                    let again = blocked.then(|| self.blocked());
                    if let Some(next) = next.into_iter().chain(again).min() {
                        self.expect(next);
                    }
                }
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            tokio::select! {
                () = woken => {}
                () = self.lead(hub) => {}
                () = clock_moved.wait() => {}
                () = tokio::time::sleep_until(until) => return Ok(None),
            }
        }
    }

    /// How long to leave alone what somebody else holds.
    fn blocked(&self) -> Duration {
        let mut state = self.state();
        let pause = state.pause;
        state.pause = (pause * 2).min(BLOCKED_MOST);
        pause
    }

    /// Waits as the one who leads until it is time to look; for ever while another one leads.
    async fn lead(&self, hub: &Hub) {
        let _leader = self.leader.lock().await;
        loop {
            let earlier = self.earlier.notified();
            let at = {
                let state = self.state();
                let poll = state.looked + 2 * hub.poll_interval();
                state.next.map_or(poll, |next| next.min(poll))
            };
            tokio::select! {
                () = tokio::time::sleep_until(at) => {
                    let mut state = self.state();
                    state.looked = Instant::now();
                    state.next = None;
                    return;
                }
                () = earlier => {}
            }
        }
    }
}
