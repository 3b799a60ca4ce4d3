//! What a worker was told together with its activity.
//!
//! The first thing a worker does with an activity is to read its instance's history, to learn the orchestration's name.
//! The lease of the activity came with the number of turns that the instance had had at that moment; if this process knows
//! the history after exactly that turn, the worker has its answer. Invariants: only the task that fetched the activity, only
//! for its first read of that instance, and only for some milliseconds: everybody else asks the database.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duroxide::Event;
use tokio::task::Id;
use tokio::time::Instant;

/// How old an answer may be.
const FRESH: Duration = Duration::from_millis(5);

/// Answers by task.
#[derive(Default)]
pub(crate) struct Told(Mutex<HashMap<Id, Answer>>);

struct Answer {
    instance: String,
    events: Arc<Vec<Event>>,
    at: Instant,
}

impl Told {
    fn answers(&self) -> MutexGuard<'_, HashMap<Id, Answer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The history that goes with an activity which this task was given, as it was at `at`.
    pub(crate) fn put(&self, instance: &str, events: Option<Arc<Vec<Event>>>, at: Instant) {
        let Some(task) = tokio::task::try_id() else { return };
        let mut answers = self.answers();
        answers.retain(|_, answer| answer.at.elapsed() < FRESH);
        match events {
            Some(events) => drop(answers.insert(task, Answer { instance: instance.to_owned(), events, at })),
            None => drop(answers.remove(&task)),
        }
    }

    /// The history that this task was told of.
    pub(crate) fn take(&self, instance: &str) -> Option<Arc<Vec<Event>>> {
        let answer = self.answers().remove(&tokio::task::try_id()?)?;
        (answer.instance == instance && answer.at.elapsed() < FRESH).then_some(answer.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_task_that_was_told_is_answered_and_only_once() {
        let told = Arc::new(Told::default());
        let task = |told: Arc<Told>| async move {
            told.put("i", Some(Arc::default()), Instant::now());
            let other = {
                let told = told.clone();
                tokio::spawn(async move { told.take("i") })
            };
            assert!(other.await.is_ok_and(|answer| answer.is_none()));
            (told.take("i").is_some(), told.take("i").is_some())
        };
        assert!(matches!(tokio::spawn(task(told.clone())).await, Ok((true, false))));
        let stale = async move {
            told.put("i", Some(Arc::default()), Instant::now() - FRESH);
            told.take("i").is_some()
        };
        assert!(matches!(tokio::spawn(stale).await, Ok(false)));
    }
}
