//! An answer on its way to a caller who may leave before it arrives, and the count of leases that are then given back.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::error::{Error, Kind, Result};

/// Waits for an answer; if the caller goes away, what was already on its way is given back.
pub(crate) struct Receipt<T, F: FnMut(T)> {
    answer: oneshot::Receiver<Result<T>>,
    back: F,
}

impl<T, F: FnMut(T)> Receipt<T, F> {
    pub(crate) fn new(answer: oneshot::Receiver<Result<T>>, back: F) -> Self {
        Receipt { answer, back }
    }

    pub(crate) async fn wait(mut self) -> Result<T> {
        (&mut self.answer).await.map_err(|_| Error::new(Kind::Closed, "the store was closed"))?
    }
}

impl<T, F: FnMut(T)> Drop for Receipt<T, F> {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(Ok(value)) = self.answer.try_recv() {
            (self.back)(value);
        }
    }
}

/// Tasks whose leases may have to be given back, because their callers may have gone.
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

/// Such a task. It goes with the leases, to the task that gives them back, and ends when it is dropped.
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

    /// Waits until all tasks have ended that began before this call.
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
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn an_answer_that_nobody_waits_for_any_more_is_given_back() {
        let mut back = Vec::new();
        let (sender, receiver) = oneshot::channel();
        let mut waiting = Box::pin(Receipt::new(receiver, |value: i32| back.push(value)).wait());
        assert!(waiting.as_mut().now_or_never().is_none());
        sender.send(Ok(7)).expect("somebody waits");
        drop(waiting);
        assert_eq!(back, [7]);
    }

    #[tokio::test]
    async fn returns_that_began_before_are_waited_for_and_later_ones_are_not() {
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

    #[tokio::test]
    async fn an_answer_that_arrived_is_not_given_back() {
        let mut back = Vec::new();
        let (sender, receiver) = oneshot::channel();
        sender.send(Ok(7)).expect("somebody waits");
        assert_eq!(Receipt::new(receiver, |value: i32| back.push(value)).wait().await.expect("an answer"), 7);
        assert!(back.is_empty());
    }
}
