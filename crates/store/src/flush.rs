//! What the combiners do with merged enqueues and verbs: one transaction, then the news of what it made ready.
//!
//! Invariants: an enqueue is not repeated here, a verb is; what a flush made ready is told before its callers are answered, also
//! when they have gone.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::combine::Flush;
use crate::error::Error;
use crate::ops::enqueue::{Entry, enqueue};
use crate::ops::finish::{Finish, Finished, finish_chains};
use crate::store::Shared;
use crate::types::{Answer, Enqueued};

/// How often a verb is repeated inside the store when the database was away: every verb is compare-and-set.
const REPEATS: u32 = 4;
/// For how long it is repeated when it may have been carried out: only this call can find out.
const UNCERTAIN: Duration = Duration::from_secs(30);

impl Shared {
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

/// Carries out a merged batch of verbs, again when the database was away. A repeat answers with what an earlier attempt did,
/// if that was carried out and only its reply was lost.
pub(crate) fn finish_flush(shared: Arc<Shared>) -> Flush<Finish, Finished> {
    Arc::new(move |items| {
        let shared = shared.clone();
        Box::pin(async move {
            let db = &shared.hub.db;
            shared.tallies.finished.add(items.len());
            let mut attempt = shared.calls.begin(db);
            let started = Instant::now();
            let mut repeats = 0;
            loop {
                match finish_chains(db, &shared.hub.clock, &items, &attempt).await {
                    Ok(finished) => {
                        shared.announce(&finished);
                        shared.look_again(&items, &finished);
                        if !attempt.is_first() {
                            // What an earlier attempt made ready is not known here.
                            shared.hub.wake_all();
                        }
                        shared.calls.prune(db, shared.hub.steady());
                        return Ok(finished);
                    }
                    Err(error) => {
                        let uncertain = (!attempt.is_first()).then(|| started.elapsed());
                        let Some(rest) = rest(&error, repeats, uncertain) else { return Err(error) };
                        if error.is_ambiguous() {
                            attempt = shared.calls.again(attempt);
                        }
                        tokio::time::sleep(rest).await;
                        repeats += 1;
                    }
                }
            }
        })
    })
}

/// How long a verb that failed rests before it is repeated; none: it is not. `uncertain` is for how long it has been repeated
/// if it may have been carried out.
fn rest(error: &Error, repeats: u32, uncertain: Option<Duration>) -> Option<Duration> {
    let again = repeats < REPEATS || uncertain.is_some_and(|repeated| repeated < UNCERTAIN);
    (error.is_retryable() && again).then(|| Duration::from_millis(50 << (2 * repeats.min(3))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn a_verb_is_repeated_four_times_and_longer_only_while_it_is_uncertain() {
        let away = Error::new(Kind::Unavailable, "away");
        let rests: Vec<_> = (0..=5).map(|repeats| rest(&away, repeats, None).map(|rest| rest.as_millis())).collect();
        assert_eq!(rests, [Some(50), Some(200), Some(800), Some(3200), None, None]);
        let after = |seconds| rest(&away, 9, Some(Duration::from_secs(seconds)));
        assert_eq!((after(29), after(30)), (Some(Duration::from_millis(3200)), None));
        for repeated in [None, Some(Duration::ZERO)] {
            assert_eq!(rest(&Error::new(Kind::Database, "refused"), 0, repeated), None);
        }
    }
}
