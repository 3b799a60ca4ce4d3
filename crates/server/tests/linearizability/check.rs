//! Looks for an order of a history's calls that agrees with the model and with time, as Wing and Gong do it.
//!
//! The search goes from the empty queue on, one step of one call at a time. Whose step can be next is decided by time:
//! a call can go on unless it began after the end of another one that is not through. Where nobody can, the search goes
//! back. What was done and where that led is remembered, and not looked at twice: as a hash of 64 bits, which among so
//! few is as good as the thing itself.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash as _, Hasher as _};

use crate::history::{Answer, Call, Operation, Time};
use crate::model::{Moment, State, Step, Writers};

/// What is said of a history that has too many orders to try.
pub(crate) const UNDECIDED: &str = "undecided";
/// A search that has come this far is given up: a history with so many orders is of no use.
const MOST: usize = 1_000_000;

/// Whether a history is one of the model, partition by partition; if not, what is wrong with it. Calls are named by
/// their place in the history.
pub(crate) fn check(history: &[Operation], partitions: usize, writers: Writers) -> Result<(), String> {
    hands_are_right(history)?;
    let mut placed = HashMap::new();
    for operation in history {
        if let Answer::Leased { partition, items } = &operation.answer {
            placed.extend(items.iter().map(|item| (item.payload.as_str(), *partition)));
        }
    }
    for partition in 0..partitions {
        let calls = history.iter().enumerate().filter_map(|(number, operation)| {
            let steps = steps(operation, partition, &placed, writers);
            let answered = !matches!(operation.answer, Answer::Unknown(_));
            let ended = if answered { visible(history, operation, writers) } else { Time::MAX };
            (!steps.is_empty()).then_some(Pending { number, began: operation.began, ended, answered, steps })
        });
        Search::new(calls.collect()).run(writers).map_err(|why| format!("partition {partition}: {why}"))?;
    }
    Ok(())
}

/// By when everybody sees what a call did: when it ended. But where many write, a call that is too late to end a lease has
/// waited for the faster one, and holds the message, which nobody else can then take, until it ends itself.
fn visible(history: &[Operation], operation: &Operation, writers: Writers) -> Time {
    let (Writers::Many, Call::Retry { ids, .. }) = (writers, &operation.call) else { return operation.ended };
    let rivals = history.iter().filter(|rival| match &rival.call {
        Call::Complete { ids: theirs, .. } | Call::Retry { ids: theirs, .. } => {
            let meanwhile = rival.began <= operation.ended && operation.began <= rival.ended;
            meanwhile && theirs.iter().any(|id| ids.contains(id))
        }
        _ => false,
    });
    rivals.map(|rival| rival.ended).fold(operation.ended, Time::max)
}

/// What can be seen without a model: nobody gets more than he asked for, and every lease has an id of its own.
fn hands_are_right(history: &[Operation]) -> Result<(), String> {
    let mut ids = HashSet::new();
    for (number, operation) in history.iter().enumerate() {
        if let (Call::Lease { batch }, Answer::Leased { items, .. }) = (&operation.call, &operation.answer) {
            if items.is_empty() || items.len() > *batch {
                return Err(format!("call {number} asked for {batch} and got {}", items.len()));
            }
            if let Some(item) = items.iter().find(|item| !ids.insert(&item.id)) {
                return Err(format!("call {number} got {item} under an id that had been handed out before"));
            }
        }
    }
    Ok(())
}

/// What a call did in a partition.
fn steps<'h>(
    operation: &'h Operation,
    partition: usize,
    placed: &HashMap<&str, usize>,
    writers: Writers,
) -> Vec<Step<'h>> {
    match (&operation.call, &operation.answer) {
        (Call::Produce(items), _) => {
            // Nobody has seen what is nowhere: it cannot matter where it is, or it is lost, and that anywhere.
            let known = items.iter().find_map(|item| placed.get(item.as_str()));
            if known.copied().unwrap_or(0) == partition { vec![Step::Append(items)] } else { Vec::new() }
        }
        (Call::Lease { batch }, Answer::Leased { partition: from, items }) if *from == partition => {
            let more = (items.len() < *batch).then_some(Step::FindNothing);
            items.iter().map(Step::Take).chain(more).collect()
        }
        (Call::Lease { .. }, Answer::Empty) => vec![Step::FindNothing],
        (Call::Complete { partition: of, ids }, answer) if *of == partition => ends(ids, answer, Step::Complete),
        (Call::Retry { partition: of, ids }, answer) if *of == partition => ends(ids, answer, Step::Requeue),
        (Call::Expire { set }, _) => match writers {
            Writers::One => vec![Step::Expire],
            Writers::Many => vec![Step::Lapse { set: *set }, Step::Settle],
        },
        _ => Vec::new(),
    }
}

/// A complete or a retry: id by id, until one is not leased.
fn ends<'h>(ids: &'h [String], answer: &'h Answer, end: fn(&'h str) -> Step<'h>) -> Vec<Step<'h>> {
    let refused = match answer {
        Answer::Refused { id } => Some(id),
        _ => None,
    };
    let done = ids.iter().take_while(|id| Some(*id) != refused);
    done.map(|id| end(id)).chain(refused.map(|id| Step::Miss(id))).collect()
}

/// A call, and what it did.
struct Pending<'h> {
    /// Its place in the history.
    number: usize,
    began: Time,
    ended: Time,
    /// Otherwise it need not have done all of it, or anything.
    answered: bool,
    steps: Vec<Step<'h>>,
}

struct Search<'h> {
    /// Those that end first come first: that is usually the right order.
    calls: Vec<Pending<'h>>,
    seen: HashSet<u64>,
    /// How far the best order came: its length, and why it cannot be continued.
    furthest: (usize, String),
}

impl<'h> Search<'h> {
    fn new(mut calls: Vec<Pending<'h>>) -> Self {
        calls.sort_by_key(|call| call.ended);
        Search { calls, seen: HashSet::new(), furthest: (0, String::new()) }
    }

    fn run(mut self, writers: Writers) -> Result<(), String> {
        let mut done = vec![0; self.calls.len()];
        if self.explore(&mut done, &State::new(writers)) {
            return Ok(());
        }
        let (tried, (length, end)) = (self.seen.len(), &self.furthest);
        if tried >= MOST {
            return Err(format!("{UNDECIDED} after {tried} states: the calls overlap too much"));
        }
        Err(format!("no order works ({tried} states tried). The longest that does has {length} steps, up to\n{end}"))
    }

    /// Whether an order can be completed of which so many steps of each call are done.
    fn explore(&mut self, done: &mut [usize], state: &State<'h>) -> bool {
        let left = self.calls.iter().zip(done.iter()).filter(|(call, done)| call.answered && **done < call.steps.len());
        let Some(horizon) = left.map(|(call, _)| call.ended).min() else { return true };
        if self.seen.len() >= MOST || !self.seen.insert(hash(done, state)) {
            return false;
        }
        let mut options = Vec::new();
        let mut refusals = Vec::new();
        for (n, call) in self.calls.iter().enumerate() {
            let Some(step) = call.steps.get(done[n]).copied().filter(|_| call.began <= horizon) else { continue };
            match state.after(step, &Moment { call: n, began: call.began, horizon }) {
                // An observation that can be made now need not be made later, whatever comes.
                Ok(nexts) if step.only_looks() && nexts[0] == *state => {
                    options = vec![(n, nexts)];
                    break;
                }
                Ok(nexts) => options.push((n, nexts)),
                Err(why) => refusals.push(format!("  call {} cannot go on: {why}", call.number)),
            }
        }
        let length: usize = done.iter().sum();
        if length >= self.furthest.0 && !refusals.is_empty() {
            self.furthest = (length, format!("  {}\n{}", state.describe(), refusals.join("\n")));
        }
        for (n, nexts) in options {
            done[n] += 1;
            if nexts.iter().any(|next| self.explore(done, next)) {
                return true;
            }
            done[n] -= 1;
        }
        false
    }
}

fn hash(done: &[usize], state: &State<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (done, state).hash(&mut hasher);
    hasher.finish()
}
