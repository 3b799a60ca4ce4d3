//! Histories that this process has read or written, so that only what is new is sent and parsed.
//!
//! Every activity and every waiting client reads its instance's whole history: without this, an orchestration that writes a
//! megabyte reads thirty. Invariants: a history only ever grows at its end, as long as the incarnation of the instance and
//! the execution stay the same, and every read and every fetch asks the database for both and for what follows: so what
//! another process wrote is seen, always. Short histories are read anew each time all the same, which costs no more than
//! asking; only a worker that was just told, with its activity, which turn the instance has seen is served from here
//! alone. Memory is bounded.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duroxide::Event;
use lru::LruCache;
use tenure_store::{HistoryEvent, Known};

/// From how many bytes on only what is new is asked for: below, reading it all costs no more.
const WORTH: usize = 8 * 1024;
/// How many of the histories used last are named in a fetch, which cannot know whose turn it will get.
const NAMED: usize = 16;

/// Histories of many instances.
pub(crate) struct Cache {
    kept: Mutex<Kept>,
    most: usize,
}

struct Kept {
    histories: LruCache<String, Entry>,
    bytes: usize,
}

struct Entry {
    born: i64,
    execution: i64,
    /// How many turns the instance had had; none: it was not told.
    turns: Option<i64>,
    events: Arc<Vec<Event>>,
    bytes: usize,
}

impl Entry {
    fn last(&self) -> i64 {
        self.events.last().map_or(0, id_of)
    }

    fn known(&self, instance: &str) -> Known {
        Known { instance: instance.to_owned(), born: self.born, execution: self.execution, last: self.last() }
    }
}

/// A history to be completed.
pub(crate) struct Part {
    pub(crate) known: Known,
    events: Arc<Vec<Event>>,
    bytes: usize,
}

pub(crate) fn id_of(event: &Event) -> i64 {
    i64::try_from(event.event_id).unwrap_or(i64::MAX)
}

/// The events of a history, or why they cannot be read.
pub(crate) fn parse(events: &[HistoryEvent]) -> Result<Vec<Event>, String> {
    let read = |event: &HistoryEvent| {
        serde_json::from_str(&event.data).map_err(|error| format!("event {} cannot be read: {error}", event.id))
    };
    events.iter().map(read).collect()
}

impl Cache {
    /// A cache of at most so many bytes.
    pub(crate) fn new(most: usize) -> Self {
        Cache { kept: Mutex::new(Kept { histories: LruCache::unbounded(), bytes: 0 }), most }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is kept of an instance, if that is worth anything.
    pub(crate) fn part(&self, instance: &str) -> Option<Part> {
        let mut kept = self.kept();
        let entry = kept.histories.get(instance).filter(|entry| entry.bytes >= WORTH)?;
        Some(Part { known: entry.known(instance), events: entry.events.clone(), bytes: entry.bytes })
    }

    /// What is kept of the instances used last.
    pub(crate) fn named(&self) -> Vec<Known> {
        let kept = self.kept();
        // Not all of them are looked at: there are thousands of short ones (which cost 3 % of a busy machine).
        let worth = kept.histories.iter().take(4 * NAMED).filter(|(_, entry)| entry.bytes >= WORTH);
        worth.take(NAMED).map(|(instance, entry)| entry.known(instance)).collect()
    }

    /// The history of an instance as it was after so many turns.
    pub(crate) fn after_turn(&self, instance: &str, (born, turns): (i64, i64)) -> Option<Arc<Vec<Event>>> {
        let mut kept = self.kept();
        let entry = kept.histories.get(instance)?;
        (entry.born == born && entry.turns == Some(turns)).then(|| entry.events.clone())
    }

    /// The whole history: what was kept, if it is still of the same instance and execution, and what is new.
    pub(crate) fn complete(
        &self,
        instance: &str,
        (born, execution, turns): (i64, i64, Option<i64>),
        part: Option<Part>,
        new: &[HistoryEvent],
    ) -> Result<Vec<Event>, String> {
        // What is kept must still be there: after a fail-over the database may have forgotten it, and then sends everything.
        let is_there = |last: i64| {
            new.first().is_none_or(|first| first.id > last) || new.binary_search_by_key(&last, |event| event.id).is_ok()
        };
        let part = part
            .filter(|part| (part.known.born, part.known.execution) == (born, execution) && is_there(part.known.last));
        let last = part.as_ref().map_or(0, |part| part.known.last);
        // An embedded database sends everything: what is known is not parsed again.
        let new = &new[new.partition_point(|event| event.id <= last)..];
        let parsed = parse(new)?;
        let bytes =
            part.as_ref().map_or(0, |part| part.bytes) + new.iter().map(|event| event.data.len()).sum::<usize>();
        let events = match part {
            None => parsed,
            Some(part) => part.events.iter().cloned().chain(parsed).collect(),
        };
        if turns.is_some() || (bytes >= WORTH && !(new.is_empty() && last > 0)) {
            self.keep(instance, Entry { born, execution, turns, events: Arc::new(events.clone()), bytes });
        }
        Ok(events)
    }

    /// Adds what a turn that began after event `last` has just written, which was the instance's turn number `turns`.
    pub(crate) fn append(
        &self,
        instance: &str,
        (born, execution, turns): (i64, i64, i64),
        last: i64,
        delta: Vec<Event>,
        size: usize,
    ) {
        let mut kept = self.kept();
        let Some(entry) = kept.histories.peek_mut(instance) else { return };
        if (entry.born, entry.execution, entry.last()) == (born, execution, last) {
            Arc::make_mut(&mut entry.events).extend(delta);
            entry.turns = Some(turns);
            entry.bytes += size;
            kept.bytes += size;
            self.shrink(&mut kept);
        } else {
            entry.turns = None;
        }
    }

    fn keep(&self, instance: &str, entry: Entry) {
        let mut kept = self.kept();
        kept.bytes += entry.bytes;
        if let Some(old) = kept.histories.put(instance.to_owned(), entry) {
            kept.bytes -= old.bytes;
        }
        self.shrink(&mut kept);
    }

    fn shrink(&self, kept: &mut Kept) {
        while kept.bytes > self.most {
            let Some((_, old)) = kept.histories.pop_lru() else { return };
            kept.bytes -= old.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use duroxide::EventKind;

    use super::*;

    fn event(id: u64, size: usize) -> Event {
        let kind = EventKind::ActivityCompleted { result: "x".repeat(size) };
        Event::with_event_id(id, "i", 1, None, kind)
    }

    fn rows(events: &[Event]) -> Vec<HistoryEvent> {
        let row =
            |event: &Event| HistoryEvent { id: id_of(event), data: serde_json::to_string(event).unwrap_or_default() };
        events.iter().map(row).collect()
    }

    #[test]
    fn only_what_is_new_is_asked_for_and_the_whole_is_returned() {
        let cache = Cache::new(1 << 20);
        let events: Vec<_> = (1..=5).map(|id| event(id, 4000)).collect();
        assert_eq!(cache.complete("i", (7, 1, None), None, &rows(&events[..3])), Ok(events[..3].to_vec()));
        let part = cache.part("i");
        assert_eq!(part.as_ref().map(|part| part.known.last), Some(3));
        assert_eq!(cache.complete("i", (7, 1, None), part, &rows(&events[3..4])), Ok(events[..4].to_vec()));
        cache.append("i", (7, 1, 2), 4, vec![events[4].clone()], 4000);
        assert!(cache.after_turn("i", (7, 2)).is_some_and(|kept| *kept == events));
        assert!(cache.after_turn("i", (7, 3)).is_none());
        // A turn that began elsewhere: what is kept is still true, but nobody knows after which turn.
        cache.append("i", (7, 1, 3), 4, vec![events[4].clone()], 4000);
        assert!(cache.after_turn("i", (7, 2)).is_none());
        assert_eq!(cache.complete("i", (7, 1, None), cache.part("i"), &[]), Ok(events.clone()));
        // Everything again, as an embedded database sends it.
        assert_eq!(cache.complete("i", (7, 1, None), cache.part("i"), &rows(&events)), Ok(events.clone()));
        // Less than before: the rest was lost.
        assert_eq!(cache.complete("i", (7, 1, None), cache.part("i"), &rows(&events[..2])), Ok(events[..2].to_vec()));
    }

    #[test]
    fn another_incarnation_or_execution_begins_anew() {
        let cache = Cache::new(1 << 20);
        let events: Vec<_> = (1..=3).map(|id| event(id, 4000)).collect();
        assert!(cache.complete("i", (7, 1, None), None, &rows(&events)).is_ok());
        let other = vec![event(1, 10)];
        assert_eq!(cache.complete("i", (8, 1, None), cache.part("i"), &rows(&other)), Ok(other.clone()));
        assert_eq!(cache.complete("i", (7, 2, None), cache.part("i"), &rows(&other)), Ok(other));
    }

    #[test]
    fn memory_is_bounded_and_short_histories_are_read_anew() {
        let cache = Cache::new(100_000);
        for n in 0..50 {
            assert!(cache.complete(&n.to_string(), (1, 1, None), None, &rows(&[event(1, 10_000)])).is_ok());
        }
        assert!(cache.kept().bytes <= 100_000 && cache.part("49").is_some() && cache.part("0").is_none());
        assert!(cache.complete("short", (1, 1, None), None, &rows(&[event(1, 10)])).is_ok());
        assert!(cache.part("short").is_none());
    }

    #[test]
    fn an_event_that_cannot_be_read_is_named() {
        let broken = [HistoryEvent { id: 4, data: "{}".to_owned() }];
        let error = Cache::new(0).complete("i", (1, 1, None), None, &broken).unwrap_err();
        assert!(error.starts_with("event 4 cannot be read"), "{error}");
    }
}
