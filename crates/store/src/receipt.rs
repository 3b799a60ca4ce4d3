//! An answer on its way to a caller who may leave before it arrives.

use tokio::sync::oneshot;

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
    async fn an_answer_that_arrived_is_not_given_back() {
        let mut back = Vec::new();
        let (sender, receiver) = oneshot::channel();
        sender.send(Ok(7)).expect("somebody waits");
        assert_eq!(Receipt::new(receiver, |value: i32| back.push(value)).wait().await.expect("an answer"), 7);
        assert!(back.is_empty());
    }
}
