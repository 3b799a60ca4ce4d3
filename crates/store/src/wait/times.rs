//! When a topic looks whose deadlines only the database knows: turns and activities.
//!
//! Invariants: a known time (a timer, a delayed try, a lease that runs out) is met by a look that begins right after it; while
//! callers wait and nothing is heard, the database is asked once what will come, and then looked at every few seconds, so that
//! an idle process asks next to nothing however many callers wait.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock::Moved;
use crate::error::Result;
use crate::wait::hub::Hub;

/// After how long without a wake-up the database is asked what will come.
const QUIET: Duration = Duration::from_millis(20);
/// How soon callers are looked for again when items wait for another holder: at first, and at most.
const BLOCKED_FIRST: Duration = Duration::from_millis(20);
const BLOCKED_MOST: Duration = Duration::from_millis(500);
/// How much further back the database is asked, for clocks that do not run alike.
const SLACK: Duration = Duration::from_millis(20);
/// A process's clock and the database's drift apart by less than this while a time is awaited.
const GRACE: Duration = Duration::from_millis(1);

/// What will come, if nothing happens before.
pub(crate) struct Next {
    pub(crate) after: Option<Duration>,
    /// Whether items wait that another holder must let go of first.
    pub(crate) blocked: bool,
}

/// When to look again.
pub(crate) struct Times {
    state: Mutex<State>,
    earlier: Notify,
    clock_moved: Mutex<Moved>,
}

struct State {
    /// When there will be something, and whether the database was asked since the last look.
    next: Option<Instant>,
    asked: bool,
    /// When the last look began, and the last one for which a time was the reason.
    began: Instant,
    polled: Instant,
    pause: Duration,
}

impl Times {
    pub(crate) fn new(clock_moved: Moved) -> Self {
        let now = Instant::now();
        let state = State { next: None, asked: false, began: now, polled: now, pause: BLOCKED_FIRST };
        Times { state: Mutex::new(state), earlier: Notify::new(), clock_moved: Mutex::new(clock_moved) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// A look begins.
    pub(crate) fn look_begins(&self) {
        let mut state = self.state();
        (state.asked, state.began) = (false, Instant::now());
    }

    /// A look has found something.
    pub(crate) fn found(&self) {
        self.state().pause = BLOCKED_FIRST;
    }

    /// Rests until it is time to look. `next` asks the database what will come, and what came within the given time.
    pub(crate) async fn rest<N>(&self, hub: &Hub, next: impl Fn(Duration) -> N) -> Result<()>
    where
        N: Future<Output = Result<Next>>,
    {
        let _waiting = hub.wait();
        let clock_moved = Moved::keep(&self.clock_moved);
        tokio::pin!(clock_moved);
        loop {
            let earlier = self.earlier.notified();
            let (at, ask) = self.until(hub);
            tokio::select! {
                () = tokio::time::sleep_until(at) => {}
                () = earlier => continue,
                () = &mut clock_moved => return Ok(()),
            }
            if !ask {
                let mut state = self.state();
                state.polled = Instant::now();
                state.next.take_if(|next| *next <= Instant::now());
                return Ok(());
            }
            // What fell due between the look and this question is in neither of them, unless it is asked for: a lease that
            // ran out in those 20 ms was met four seconds late.
            let since = self.state().began.elapsed() + SLACK;
            self.plan(&next(since).await?);
        }
    }

    /// Until when there is nothing to do, and whether the database is then asked instead of looked at.
    fn until(&self, hub: &Hub) -> (Instant, bool) {
        let state = self.state();
        let poll = state.polled + hub.quiet_interval();
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
