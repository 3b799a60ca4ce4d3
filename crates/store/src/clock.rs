//! Whose clock decides: the database's, or in tests a fixed one that is moved by hand.
//!
//! Every statement that needs the time takes it as its first parameter; null means the database's own clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

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
pub struct Clock(Option<Arc<Fixed>>);

#[derive(Debug)]
struct Fixed {
    now: AtomicI64,
    moved: Notify,
}

impl Clock {
    /// The database's clock: the only one for real use.
    pub fn database() -> Self {
        Clock(None)
    }

    /// A clock that stands still at `micros` since 1970 until it is advanced.
    pub fn fixed(micros: i64) -> Self {
        Clock(Some(Arc::new(Fixed { now: AtomicI64::new(micros), moved: Notify::new() })))
    }

    /// Moves a fixed clock forward and wakes whoever waits for a time.
    ///
    /// # Panics
    /// When this is the database's clock: nobody can move that.
    pub fn advance(&self, by: Duration) {
        let fixed = self.0.as_ref().expect("only a fixed clock can be advanced");
        fixed.now.fetch_add(micros(by), Ordering::SeqCst);
        fixed.moved.notify_waiters();
    }

    /// The time of a fixed clock in microseconds since 1970; none for the database's.
    pub fn fixed_now(&self) -> Option<i64> {
        self.0.as_ref().map(|fixed| fixed.now.load(Ordering::SeqCst))
    }

    /// The first parameter of every statement that needs the time.
    pub(crate) fn value(&self) -> Value {
        self.fixed_now().map_or(Value::Null, Value::Int)
    }

    /// Waits until a fixed clock is moved; for ever on the database's clock.
    pub(crate) async fn moved(&self) {
        match &self.0 {
            Some(fixed) => fixed.moved.notified().await,
            None => std::future::pending().await,
        }
    }
}

/// Whole microseconds, saturating: the kernel's unit of time.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
