//! Leases: a message has one at a time, and the holder of a valid lease is not refused.

use std::collections::BTreeMap;

use super::index::{Index, Lease};
use super::{Kind, Violation};
use crate::history::{Finish, Micros, Verb};

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for uid in index.uids() {
        let leases: Vec<_> = index.of(uid).collect();
        found.extend(two_at_once(index, &leases));
        found.extend(leases.iter().filter_map(|lease| refused(index, lease)));
        found.extend(run_again(index, &leases));
    }
    found.extend(keys(index));
    found
}

fn violation(kind: Kind, lease: &Lease<'_>, text: String) -> Violation {
    Violation { kind, uid: Some(lease.leased.uid.clone()), text }
}

/// Until when no other lease may begin, by the database's clock and by what the holder was told.
fn exclusive_until(index: &Index<'_>, lease: &Lease<'_>) -> Micros {
    let proven = lease.proven(Micros::MAX).unwrap_or(Micros::MIN);
    let proven = lease.given_up().map_or(proven, |at| proven.min(at));
    match lease.claim {
        Some(_) => proven,
        // A handler of the run loop relies on being told.
        None => proven.max(index.held_until(lease)),
    }
}

fn two_at_once(index: &Index<'_>, leases: &[&Lease<'_>]) -> Option<Violation> {
    for (n, second) in leases.iter().enumerate() {
        for first in &leases[..n] {
            let over = exclusive_until(index, first) - second.leased.from;
            if over > index.rules.slack {
                let text = format!(
                    "a lease of {} began {} ms before the lease of {} was over",
                    second.process,
                    over / 1000,
                    first.process
                );
                return Some(violation(Kind::TwoLeases, second, text));
            }
        }
    }
    None
}

/// A verb of the holder that was asked and answered while its lease was valid, and refused.
fn refused(index: &Index<'_>, lease: &Lease<'_>) -> Option<Violation> {
    let endings = lease.endings.iter().filter_map(|ending| match ending.answer {
        Some((at, Finish::Lost)) => Some((Some(ending.at), at, format!("{:?}", ending.verb))),
        _ => None,
    });
    let extensions = lease.extensions.iter().filter_map(|extension| match extension.answer {
        Some((at, false)) => Some((None, at, "an extension".to_owned())),
        _ => None,
    });
    for (asked, answered, what) in endings.chain(extensions) {
        let valid = lease.proven(answered).is_some_and(|until| answered <= until - index.rules.slack);
        // Another end that the holder has asked for itself may have come first.
        let others = lease.endings.iter().filter(|ending| ending.at <= answered).count();
        let own = usize::from(asked.is_some());
        if valid && others <= own {
            let left = lease.proven(answered).unwrap_or(answered) - answered;
            let text = format!("{what} by {} was refused with {} ms of its lease left", lease.process, left / 1000);
            return Some(violation(Kind::HolderRefused, lease, text));
        }
    }
    None
}

/// A message whose handler had finished it was delivered again, and nothing had hit the handler or its process.
fn run_again(index: &Index<'_>, leases: &[&Lease<'_>]) -> Option<Violation> {
    for (n, first) in leases.iter().enumerate() {
        let finished = first.endings.iter().find(|ending| ending.verb != Verb::Return);
        let (None, None, Some(finished)) = (first.claim, first.lost, finished) else { continue };
        for second in leases[n + 1..].iter() {
            let began = second.leased.from;
            let hit = index.stops(first.process, first.known, began).next().is_some()
                || index.killed(first.process).is_some_and(|at| at <= began + index.rules.slack);
            if began > finished.at + index.rules.slack && !hit {
                let text = format!(
                    "its handler in {} had finished it {} ms before it was delivered to {}, and was not told that its lease was lost",
                    first.process,
                    (began - finished.at) / 1000,
                    second.process
                );
                return Some(violation(Kind::HolderRefused, second, text));
            }
        }
    }
    None
}

/// A key has one holder: handlers of its messages, and leases of the whole key, do not overlap.
fn keys(index: &Index<'_>) -> Vec<Violation> {
    let mut holds: BTreeMap<&str, Vec<(Micros, Micros, &Lease<'_>)>> = BTreeMap::new();
    for lease in &index.leases {
        let key = index.puts.get(lease.leased.uid.as_str()).and_then(|put| put.item.key.as_deref());
        let Some(key) = key else { continue };
        holds.entry(key).or_default().push((lease.known, exclusive_until(index, lease), lease));
    }
    let mut found = Vec::new();
    for (key, mut holds) in holds {
        holds.sort_by_key(|(from, ..)| *from);
        let mut last: Option<(Micros, &Lease<'_>)> = None;
        for (from, to, lease) in holds {
            if let Some((until, holder)) = last
                && !together(holder, lease)
                && from < until - index.rules.slack
                && holder.leased.uid != lease.leased.uid
            {
                let over = (until - from) / 1000;
                let text =
                    format!("{} holds its key '{key}' {over} ms before {} was done", lease.process, holder.process);
                found.push(violation(Kind::TwoLeases, lease, text));
                break;
            }
            if last.is_none_or(|(until, _)| to > until) {
                last = Some((to, lease));
            }
        }
    }
    found
}

/// Whether messages of a key came with the same lease of the key. In a run loop one handler follows the other under it, and
/// the next begins when the loop has heard the end of the one before.
fn together(one: &Lease<'_>, other: &Lease<'_>) -> bool {
    one.process == other.process && one.claim.is_some() && one.claim == other.claim
}
