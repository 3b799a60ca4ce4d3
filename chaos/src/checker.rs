//! What a history proves to be wrong. See the crate's documentation for what is checked.

mod index;
mod leases;
mod messages;
mod order;
#[cfg(test)]
mod tests;
mod time;

use std::fmt;

use crate::history::{Record, Torn};
use index::Index;

/// What kind of promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A history has a line that cannot be read.
    Torn,
    /// An acknowledged message is nowhere.
    Lost,
    /// A message was stored twice.
    Duplicated,
    /// A message was delivered that was never enqueued.
    Unknown,
    /// The end of a message was accepted twice.
    AcceptedTwice,
    /// A message was delivered, or found in its queue, after its end was accepted.
    Revived,
    /// Two leases of a message or of a key were valid at the same time.
    TwoLeases,
    /// The holder of a valid lease was refused.
    HolderRefused,
    /// A message of a key was delivered before an earlier one was finished.
    KeyOrder,
    /// A message was overtaken by a later one of its lane.
    LaneOrder,
    /// A call was not answered in its time.
    Late,
    /// A message is dead that no consumer buried.
    DeadWithoutCause,
    /// A message is in the archive as completed that no consumer completed.
    CompletedWithoutCause,
    /// A message was still in its queue when everything had been given time to be delivered.
    Undelivered,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise.
    pub kind: Kind,
    /// Which message, if it concerns one.
    pub uid: Option<String>,
    /// What happened.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: ", self.kind)?;
        if let Some(uid) = &self.uid {
            write!(f, "{uid}: ")?;
        }
        f.write_str(&self.text)
    }
}

/// Everything that is wrong in a history, which is in the order of time.
pub fn check(records: &[Record], torn: &[Torn]) -> Vec<Violation> {
    let index = Index::new(records);
    let mut violations: Vec<Violation> = torn
        .iter()
        .map(|torn| Violation {
            kind: Kind::Torn,
            uid: None,
            text: format!("line {} of the history of {} cannot be read", torn.line, torn.process),
        })
        .collect();
    violations.extend(messages::check(&index));
    violations.extend(leases::check(&index));
    violations.extend(order::check(&index));
    violations.extend(time::check(&index));
    violations
}

/// How much a history says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Calls.
    pub calls: usize,
    /// Acknowledged messages.
    pub acknowledged: usize,
    /// Leases, those of handlers included.
    pub leases: usize,
    /// Messages whose end was accepted, or whose handler returned.
    pub finished: usize,
}

/// How much a history says: one that says little proves little.
pub fn volume(records: &[Record]) -> Volume {
    let index = Index::new(records);
    let finished = |uid: &&str| index.of(uid).any(|lease| lease.finished_by(index.ending));
    Volume {
        calls: index.calls.len(),
        acknowledged: index.puts.values().filter(|put| put.acknowledged.is_some()).count(),
        leases: index.leases.len(),
        finished: index.uids().filter(finished).count(),
    }
}

/// The records that concern a message, for people who read a violation.
pub fn concerning<'a>(records: &'a [Record], uid: &str) -> Vec<&'a Record> {
    let index = Index::new(records);
    let leases = index.of(uid).map(|lease| (lease.process, lease.leased.lease)).collect::<Vec<_>>();
    let calls: Vec<_> =
        index.calls.iter().filter(|call| call.concerns(uid, &leases)).map(|call| (call.process, call.number)).collect();
    let wanted = |record: &&Record| {
        use crate::history::Event;
        let process = record.process.as_str();
        match &record.event {
            Event::Call { call, .. } | Event::Answer { call, .. } => calls.contains(&(process, *call)),
            Event::Begin { lease } => lease.uid == uid,
            Event::LeaseLost { lease } | Event::End { lease, .. } => leases.contains(&(process, *lease)),
            Event::Final { uid: found, .. } => found == uid,
            _ => false,
        }
    };
    records.iter().filter(wanted).collect()
}
