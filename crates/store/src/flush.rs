//! What the combiners do with merged enqueues and verbs: one transaction, then the news of what it made ready.
//!
//! Invariants: an enqueue is not repeated here, a verb is; what a flush made ready is told before its callers are answered, also
//! when they have gone.

use std::sync::Arc;
use std::time::Duration;

use crate::calls::Attempt;
use crate::combine::{Flush, asked};
use crate::error::{Error, Result};
use crate::ops::enqueue::{Entry, enqueue};
use crate::ops::finish::{Finish, Finished, finish_chains};
use crate::store::Shared;
use crate::types::{Answer, Enqueued};

/// How often a verb is repeated inside the store when the database was away: every verb is compare-and-set.
const REPEATS: u32 = 4;
/// For how long after the call it is repeated when it was certainly not carried out: as long as SQLite waits for another
/// process's write lock, so that several waits do not add up.
const CERTAIN: Duration = Duration::from_secs(10);
/// For how long it is repeated when it may have been carried out: only this call can find out.
const UNCERTAIN: Duration = Duration::from_secs(30);

impl Shared {
    /// Carries out a call of verbs, again when the database was away. A repeat is given the attempts before it, so that it can
    /// answer with what one of them did, if that was carried out and only its reply was lost.
    pub(crate) async fn repeated<T, F>(&self, call: impl Fn(Attempt) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut attempt = self.calls.begin(&self.hub.db);
        let called = asked();
        let mut repeats = 0;
        loop {
            match call(attempt.clone()).await {
                Ok(done) => {
                    if !attempt.is_first() {
                        // What an earlier attempt made ready is not known here.
                        self.hub.wake_all();
                    }
                    self.calls.prune(&self.hub.db, self.hub.steady());
                    return Ok(done);
                }
                Err(error) => {
                    if error.is_ambiguous() {
                        attempt = self.calls.again(attempt);
                    }
                    let Some(rest) = rest(&error, repeats, called.elapsed(), attempt.is_first()) else {
                        return Err(error);
                    };
                    tokio::time::sleep(rest).await;
                    repeats += 1;
                }
            }
        }
    }

    /// Wakes the lanes of verbs that were lost. Such a verb may have waited for the row lock of a faster one, and kept the lock
    /// until it ended: claims skipped the message meanwhile (found by the linearizability test: a message that was retried twice
    /// at the same time came a second late).
    fn look_again(&self, items: &[Finish], finished: &[Finished]) {
        let late = items.iter().zip(finished).filter(|(_, finished)| finished.answer == Answer::Lost);
        for lane in late.filter_map(|(item, _)| item.fence.lane) {
            self.hub.ready_somewhere(lane);
        }
    }
}

/// Enqueues a merged batch. It is not repeated when the database goes away: whether it was committed is then unknown,
/// and only a dedupe key makes a repeat safe.
pub(crate) fn enqueue_flush(shared: Arc<Shared>) -> Flush<Entry, Enqueued> {
    Arc::new(move |entries| {
        let shared = shared.clone();
        Box::pin(async move {
            shared.tallies.enqueued.add(entries.len());
            if let [entry] = entries.as_slice()
                && let Some(enqueued) = shared.enqueue_offered(entry).await
            {
                return Ok(vec![enqueued?]);
            }
            let plain = entries.iter().all(Entry::is_plain);
            let (clock, items) = (shared.hub.clock.clone(), entries.clone());
            let act =
                shared.hub.db.commit(plain, move |conn| Box::pin(async move { enqueue(conn, &clock, &items).await }));
            let answers = act.await?;
            let mut least: Vec<(i64, bool, i64)> = Vec::new();
            for (entry, answer) in entries.iter().zip(&answers) {
                match answer.due_at {
                    _ if answer.duplicate => {}
                    Some(_) => shared.hub.due(entry.lane),
                    None => {
                        let (lane, keyed) = (entry.lane, entry.message.key.is_some());
                        match least.iter_mut().rfind(|(known, with, _)| (*known, *with) == (lane, keyed)) {
                            Some((.., id)) => *id = answer.id.min(*id),
                            None => least.push((lane, keyed, answer.id)),
                        }
                    }
                }
            }
            for (lane, keyed, id) in least {
                if keyed { shared.hub.ready_key(lane, id) } else { shared.hub.ready(lane, id) }
            }
            Ok(answers)
        })
    })
}

/// Carries out a merged batch of verbs.
pub(crate) fn finish_flush(shared: Arc<Shared>) -> Flush<Finish, Finished> {
    Arc::new(move |items| {
        let shared = shared.clone();
        Box::pin(async move {
            shared.tallies.finished.add(items.len());
            let (hub, items) = (&shared.hub, &items);
            let call = |attempt| async move { finish_chains(&hub.db, &hub.clock, items, &attempt).await };
            let finished = shared.repeated(call).await?;
            shared.announce(&finished);
            shared.look_again(items, &finished);
            Ok(finished)
        })
    })
}

/// How long a verb that failed rests before it is repeated; none: it is not. `since` is how long ago it was called, and `certain`
/// says that no earlier attempt can have been carried out.
fn rest(error: &Error, repeats: u32, since: Duration, certain: bool) -> Option<Duration> {
    let again = if certain { repeats < REPEATS && since < CERTAIN } else { repeats < REPEATS || since < UNCERTAIN };
    (error.is_retryable() && again).then(|| Duration::from_millis(50 << (2 * repeats.min(3))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn a_verb_is_repeated_four_times_within_ten_seconds_and_longer_only_while_it_is_uncertain() {
        let away = || Error::new(Kind::Unavailable, "away");
        let after = |error: Error, repeats, seconds, certain| {
            rest(&error, repeats, Duration::from_secs(seconds), certain).map(|rest| rest.as_millis())
        };
        let rests: Vec<_> = (0..=5).map(|repeats| after(away(), repeats, 9, true)).collect();
        assert_eq!(rests, [Some(50), Some(200), Some(800), Some(3200), None, None]);
        assert_eq!(after(away(), 0, 10, true), None);
        assert_eq!((after(away(), 9, 29, false), after(away(), 9, 30, false)), (Some(3200), None));
        assert_eq!(after(away(), 3, 99, false), Some(3200), "its first attempt may have taken that long");
        for certain in [true, false] {
            assert_eq!(after(Error::new(Kind::Database, "refused"), 0, 0, certain), None);
        }
    }
}
