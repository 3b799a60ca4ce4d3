//! What a task was told together with something else.
//!
//! The first thing a worker does with an activity is to read its instance's history, to learn the orchestration's name. The
//! lease of the activity came with the number of turns that the instance had had at that moment; if this process knows the
//! history after exactly that turn, the worker has its answer. And a client that waits asks for the history and then, every
//! time, for the custom status: both come with one statement. Invariants: only the task that was told, only for its next
//! question of that kind about that instance, only for some milliseconds, and nothing that this process has overtaken by a
//! turn of its own: everybody else asks the database.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duroxide::Event;
use tokio::task::Id;
use tokio::time::Instant;

/// How old an answer may be.
const FRESH: Duration = Duration::from_millis(5);
/// From how many answers on the old ones are looked for.
const MANY: usize = 256;

/// A custom status and its version; none: there never was one.
type Status = Option<(Option<String>, i64)>;

/// Answers by task.
#[derive(Default)]
pub(crate) struct Told(Mutex<HashMap<Id, Answer>>);

struct Answer {
    instance: String,
    at: Instant,
    what: What,
}

enum What {
    History(Arc<Vec<Event>>),
    Status(Status),
}

impl Told {
    fn answers(&self) -> MutexGuard<'_, HashMap<Id, Answer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The history that goes with an activity which this task was given, as it was at `at`.
    pub(crate) fn history(&self, instance: &str, events: Option<Arc<Vec<Event>>>, at: Instant) {
        self.put(instance, events.map(What::History), at);
    }

    /// The custom status that goes with a history which this task has read, as it was at `at`.
    pub(crate) fn status(&self, instance: &str, status: Status, at: Instant) {
        self.put(instance, Some(What::Status(status)), at);
    }

    fn put(&self, instance: &str, what: Option<What>, at: Instant) {
        let Some(task) = tokio::task::try_id() else { return };
        let mut answers = self.answers();
        if answers.len() >= MANY {
            answers.retain(|_, answer| answer.at.elapsed() < FRESH);
        }
        match what {
            Some(what) => drop(answers.insert(task, Answer { instance: instance.to_owned(), at, what })),
            None => drop(answers.remove(&task)),
        }
    }

    fn take(&self, instance: &str) -> Option<What> {
        let answer = self.answers().remove(&tokio::task::try_id()?)?;
        (answer.instance == instance && answer.at.elapsed() < FRESH).then_some(answer.what)
    }

    /// The history that this task was told of.
    pub(crate) fn take_history(&self, instance: &str) -> Option<Arc<Vec<Event>>> {
        match self.take(instance)? {
            What::History(events) => Some(events),
            What::Status(_) => None,
        }
    }

    /// The custom status that this task was told of.
    pub(crate) fn take_status(&self, instance: &str) -> Option<Status> {
        match self.take(instance)? {
            What::Status(status) => Some(status),
            What::History(_) => None,
        }
    }

    /// A turn of this process has changed an instance.
    pub(crate) fn forget(&self, instance: &str) {
        self.answers().retain(|_, answer| answer.instance != instance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_task_that_was_told_is_answered_and_only_once() {
        let told = Arc::new(Told::default());
        let task = |told: Arc<Told>| async move {
            told.history("i", Some(Arc::default()), Instant::now());
            let other = told.clone();
            let other = tokio::spawn(async move { other.take_history("i").is_none() });
            assert!(matches!(other.await, Ok(true)));
            (told.take_history("i").is_some(), told.take_history("i").is_some())
        };
        assert!(matches!(tokio::spawn(task(told.clone())).await, Ok((true, false))));
        let stale = async move {
            told.history("i", Some(Arc::default()), Instant::now() - FRESH);
            assert!(told.take_history("i").is_none());
            told.status("i", Some((None, 3)), Instant::now());
            told.forget("i");
            assert!(told.take_status("i").is_none());
            told.status("i", Some((None, 3)), Instant::now());
            told.take_status("i")
        };
        assert!(matches!(tokio::spawn(stale).await, Ok(Some(Some((None, 3))))));
    }
}
