//! A lease on its way to a caller that may have gone, and the count of leases that are then released.
//!
//! Invariant: what was leased for a caller reaches that caller, or is released as if it had not been leased. A lease that is
//! dropped anywhere on its way (an answer that was not read, a caller cancelled at any await) releases itself.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::store::Shared;

/// What can be leased, and released without counting the lease.
pub trait Leased: Send + 'static {
    /// Releases it; a failure is logged, and the lease then runs out.
    fn release(self) -> impl Future<Output = ()> + Send;
}

/// Something leased that no caller has received yet.
pub struct Lease<T: Leased> {
    leased: Option<(T, Option<Return>)>,
    runtime: Handle,
}

impl<T: Leased> Lease<T> {
    /// Guards a lease.
    ///
    /// # Panics
    /// Outside a Tokio runtime, in which it is released.
    pub fn new(leased: T) -> Self {
        Lease { leased: Some((leased, None)), runtime: Handle::current() }
    }

    /// The same, counted until it was kept or released.
    pub(crate) fn counted(leased: T, returns: &Returns) -> Self {
        Lease { leased: Some((leased, Some(returns.begin()))), runtime: Handle::current() }
    }

    /// Takes it: its caller has it now, and must end it.
    ///
    /// # Panics
    /// Never: it is there until this or the drop.
    pub fn keep(mut self) -> T {
        self.leased.take().expect("a lease is kept once").0
    }
}

impl<T: Leased> Drop for Lease<T> {
    fn drop(&mut self) {
        if let Some((leased, counted)) = self.leased.take() {
            self.runtime.spawn(async move {
                leased.release().await;
                drop(counted);
            });
        }
    }
}

/// Something leased from this store.
pub(crate) struct Held<T> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) it: T,
}

impl<T> Held<T>
where
    Held<T>: Leased,
{
    pub(crate) fn lease(shared: &Arc<Shared>, it: T) -> Lease<Self> {
        Lease::counted(Held { shared: shared.clone(), it }, &shared.returns)
    }
}

/// Counts the leases that may have to be released because their callers may have gone.
#[derive(Clone, Default)]
pub(crate) struct Returns(Arc<Tasks>);

#[derive(Default)]
struct Tasks {
    running: Mutex<Running>,
    ended: Notify,
}

#[derive(Default)]
struct Running {
    next: u64,
    numbers: BTreeSet<u64>,
}

/// One of them. It goes with the lease, to the task that releases it, and ends when it is dropped.
pub(crate) struct Return {
    returns: Returns,
    number: u64,
}

impl Returns {
    fn running(&self) -> MutexGuard<'_, Running> {
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self) -> Return {
        let mut running = self.running();
        let number = running.next;
        running.next += 1;
        running.numbers.insert(number);
        Return { returns: self.clone(), number }
    }

    /// Waits until all have ended that began before this call.
    pub(crate) async fn wait(&self) {
        let before = self.running().next;
        loop {
            let ended = self.0.ended.notified();
            if self.running().numbers.first().is_none_or(|number| *number >= before) {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Return {
    fn drop(&mut self) {
        self.returns.running().numbers.remove(&self.number);
        self.returns.0.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt as _;

    use super::*;

    /// Counts how often it was released.
    struct Counted(Arc<AtomicUsize>);

    impl Leased for Counted {
        async fn release(self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn lease(released: &Arc<AtomicUsize>, returns: &Returns) -> Lease<Counted> {
        Lease::counted(Counted(released.clone()), returns)
    }

    #[tokio::test]
    async fn lease_whose_caller_has_gone_is_released_once_and_can_be_awaited() {
        let (released, returns) = (Arc::default(), Returns::default());
        let (reply, answer) = tokio::sync::oneshot::channel();
        drop(reply.send(lease(&released, &returns)));
        drop(answer);
        returns.wait().await;
        assert_eq!(released.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn lease_that_was_kept_is_not_released() {
        let (released, returns) = (Arc::default(), Returns::default());
        let kept = lease(&released, &returns).keep();
        returns.wait().await;
        assert_eq!(kept.0.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn releases_that_began_before_are_waited_for_and_later_ones_are_not() {
        let returns = Returns::default();
        let (first, second) = (returns.begin(), returns.begin());
        let mut waiting = Box::pin(returns.wait());
        assert!(waiting.as_mut().now_or_never().is_none());
        let _later = returns.begin();
        drop(second);
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(first);
        waiting.await;
    }
}
