//! Whose clock decides: the database's, or in tests a fixed one that is moved by hand.
//!
//! Every statement that needs the time takes it as its first parameter; null means the database's own clock.

use std::sync::Arc;
use std::time::Duration;

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
pub struct Clock(Option<Arc<watch::Sender<i64>>>);

impl Clock {
    /// The database's clock: the only one for real use.
    pub fn database() -> Self {
        Clock(None)
    }

    /// A clock that stands still at `micros` since 1970 until it is advanced.
    pub fn fixed(micros: i64) -> Self {
        Clock(Some(Arc::new(watch::Sender::new(micros))))
    }

    /// Moves a fixed clock forward and wakes whoever waits for a time.
    ///
    /// # Panics
    /// When this is the database's clock: nobody can move that.
    pub fn advance(&self, by: Duration) {
        let fixed = self.0.as_ref().expect("only a fixed clock can be advanced");
        fixed.send_modify(|now| *now += micros(by));
    }

    /// The time of a fixed clock in microseconds since 1970; none for the database's.
    pub fn fixed_now(&self) -> Option<i64> {
        self.0.as_ref().map(|fixed| *fixed.borrow())
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
pub(crate) struct Moved(Option<watch::Receiver<i64>>);

impl Moved {
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
