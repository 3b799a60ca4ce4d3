//! What a run did: every call with its arguments, its answer, and when it began and ended.

use std::fmt::{self, Display, Write as _};

/// Nanoseconds on a clock that never goes back.
pub(crate) type Time = u64;

/// A call that was made.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) client: String,
    pub(crate) began: Time,
    pub(crate) ended: Time,
    pub(crate) call: Call,
    pub(crate) answer: Answer,
}

/// What was asked for. Items are known by their payloads: no two of a run are the same.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Produce(Vec<String>),
    Lease {
        batch: usize,
    },
    Complete {
        partition: usize,
        ids: Vec<String>,
    },
    Retry {
        partition: usize,
        ids: Vec<String>,
    },
    /// The clock was moved past the end of all leases. Whoever began after `set` cannot have read the old time.
    Expire {
        set: Time,
    },
}

/// What was answered.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Done,
    Leased {
        partition: usize,
        items: Vec<Item>,
    },
    /// A lease has waited in vain.
    Empty,
    /// A complete or a retry got as far as this id, which was not leased.
    Refused {
        id: String,
    },
    /// Nobody knows what was done.
    Unknown(String),
}

/// An item as a lease hands it out.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) payload: String,
    pub(crate) id: String,
    pub(crate) attempts: u32,
}

/// The end of an id: its beginning is the same for all.
fn short(id: &str) -> &str {
    id.get(id.len().saturating_sub(5)..).unwrap_or(id)
}

fn list<T>(of: &[T], show: impl Fn(&T) -> String) -> String {
    of.iter().map(show).collect::<Vec<_>>().join(" ")
}

impl Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({}, attempt {})", self.payload, short(&self.id), self.attempts)
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = |ids: &[String]| list(ids, |id| short(id).to_owned());
        match self {
            Call::Produce(items) => write!(f, "produce {}", items.join(" ")),
            Call::Lease { batch } => write!(f, "lease up to {batch}"),
            Call::Complete { partition, ids: which } => write!(f, "complete {} of {partition}", ids(which)),
            Call::Retry { partition, ids: which } => write!(f, "retry {} of {partition}", ids(which)),
            Call::Expire { .. } => write!(f, "all leases expire"),
        }
    }
}

impl Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Done => write!(f, "done"),
            Answer::Leased { partition, items } => write!(f, "{} of {partition}", list(items, Item::to_string)),
            Answer::Empty => write!(f, "nothing"),
            Answer::Refused { id } => write!(f, "refused: {} is not leased", short(id)),
            Answer::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}

/// A history for people: one line a call, in the order of their beginnings, times in milliseconds.
pub(crate) fn table(history: &[Operation]) -> String {
    let start = history.iter().map(|operation| operation.began).min().unwrap_or(0);
    let millis = |time: Time| time.saturating_sub(start) as f64 / 1e6;
    let mut text = format!("{:>4}  {:<6} {:>9} {:>9}  {:<34} answer\n", "call", "client", "began", "ended", "what");
    for (n, Operation { client, began, ended, call, answer }) in history.iter().enumerate() {
        let (began, ended, call) = (millis(*began), millis(*ended), call.to_string());
        writeln!(text, "{n:>4}  {client:<6} {began:>9.3} {ended:>9.3}  {call:<34} {answer}").unwrap();
    }
    text
}

/// What happened in all runs together.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    calls: usize,
    produced: usize,
    first_leases: usize,
    later_leases: usize,
    shared_leases: usize,
    in_vain: usize,
    completed: usize,
    retried: usize,
    refused: usize,
    expiries: usize,
    unknown: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, history: &[Operation]) {
        self.calls += history.len();
        for operation in history {
            match (&operation.call, &operation.answer) {
                (_, Answer::Unknown(_)) => self.unknown += 1,
                (_, Answer::Refused { .. }) => self.refused += 1,
                (_, Answer::Empty) => self.in_vain += 1,
                (_, Answer::Leased { items, .. }) => {
                    let first = items.iter().filter(|item| item.attempts == 1).count();
                    self.first_leases += first;
                    self.later_leases += items.len() - first;
                    self.shared_leases += usize::from(items.len() > 1);
                }
                (Call::Produce(items), _) => self.produced += items.len(),
                (Call::Complete { .. }, _) => self.completed += 1,
                (Call::Retry { .. }, _) => self.retried += 1,
                (Call::Expire { .. }, _) => self.expiries += 1,
                (Call::Lease { .. }, Answer::Done) => {}
            }
        }
    }

    /// Runs in which nothing much happens would prove nothing.
    pub(crate) fn assert_worth(&self) {
        assert!(self.first_leases >= self.produced, "what was produced was not leased: {self:?}");
        let met = [self.later_leases, self.shared_leases, self.in_vain, self.completed, self.retried, self.refused];
        assert!(met.iter().all(|count| *count >= 50), "something hardly ever happens: {self:?}");
        assert!(self.expiries >= 20, "leases hardly ever expire: {self:?}");
        assert!(self.unknown * 50 <= self.calls, "too many calls went wrong: {self:?}");
    }
}
