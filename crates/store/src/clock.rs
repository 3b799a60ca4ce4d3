//! Whose clock decides: the database's, or in tests a fixed one that is moved by hand.
//!
//! Every statement that needs the time takes it as its first parameter; null means the database's own clock.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use crate::value::Value;

/// The clock of a store.
///
/// ```
/// use std::time::Duration;
/// use tenure_store::Clock;
/// let clock = Clock::fixed(1_000_000);
/// clock.advance(Duration::from_millis(5));
/// assert_eq!(clock.fixed_now(), Some(1_005_000));
/// assert_eq!(Clock::database().fixed_now(), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Arc<watch::Sender<Hands>>>);

/// How long a clock that was set stands still: longer than a slow machine needs for what a test does at one time.
const HOLD: Duration = Duration::from_secs(10);

/// What a clock of ours shows: a time, and since when it runs on from there; none: it stands.
#[derive(Clone, Copy, Debug)]
struct Hands {
    at: i64,
    since: Option<Instant>,
}

impl Clock {
    /// The database's clock: the only one for real use.
    pub fn database() -> Self {
        Clock(None)
    }

    /// A clock that stands still at `micros` since 1970 until it is advanced.
    pub fn fixed(micros: i64) -> Self {
        Clock(Some(Arc::new(watch::Sender::new(Hands { at: micros, since: None }))))
    }

    /// A clock that runs from this machine's time on and can be [set](Clock::set): for tests of whole servers.
    pub fn settable() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros);
        Clock(Some(Arc::new(watch::Sender::new(Hands { at: now, since: Some(Instant::now()) }))))
    }

    /// Sets a test clock and wakes every wait for a time. One that runs stands for ten seconds first, so that what
    /// happens then happens exactly at that time, and goes on running from there.
    ///
    /// # Panics
    /// When this is the database's clock: nobody can set that.
    pub fn set(&self, micros: i64) {
        let ours = self.0.as_ref().expect("only a clock of ours can be set");
        ours.send_modify(|hands| *hands = Hands { at: micros, since: hands.since.map(|_| Instant::now() + HOLD) });
    }

    /// Moves a fixed clock forward and wakes every wait for a time.
    ///
    /// # Panics
    /// When this is the database's clock: nobody can move that.
    pub fn advance(&self, by: Duration) {
        let fixed = self.0.as_ref().expect("only a fixed clock can be advanced");
        fixed.send_modify(|hands| hands.at += micros(by));
    }

    /// The time of a clock of ours in microseconds since 1970; none for the database's.
    pub fn fixed_now(&self) -> Option<i64> {
        let hands = *self.0.as_ref()?.borrow();
        Some(hands.at + hands.since.map_or(0, |since| micros(since.elapsed())))
    }

    /// Whether time passes only when somebody moves it.
    pub(crate) fn stands(&self) -> bool {
        self.0.as_ref().is_some_and(|ours| ours.borrow().since.is_none())
    }

    /// The first parameter of every statement that needs the time.
    pub(crate) fn value(&self) -> Value {
        self.fixed_now().map_or(Value::Null, Value::Int)
    }

    /// Something that knows whether the clock has been moved since it was last asked.
    pub(crate) fn watch(&self) -> Moved {
        Moved(self.0.as_ref().map(|fixed| fixed.subscribe()))
    }
}

/// See [`Clock::watch`].
#[derive(Clone)]
pub(crate) struct Moved(Option<watch::Receiver<Hands>>);

impl Moved {
    /// Waits until a fixed clock is moved that was not moved since the last wait ended, also one that is kept for many waits.
    pub(crate) async fn keep(kept: &Mutex<Moved>) {
        let mut moved = kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        moved.wait().await;
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = moved;
    }

    /// Waits until a fixed clock is moved; for ever on the database's clock.
    pub(crate) async fn wait(&mut self) {
        let moved = match &mut self.0 {
            Some(fixed) => fixed.changed().await.is_ok(),
            None => false,
        };
        if !moved {
            std::future::pending::<()>().await;
        }
    }
}

/// Whole microseconds, saturating: the kernel's unit of time.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
