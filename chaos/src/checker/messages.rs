//! Messages: none lost, none twice, none out of nothing, and each ends once.

use std::collections::{BTreeMap, BTreeSet};

use super::index::{Index, Put};
use super::{Kind, Violation};
use crate::history::{Answer, Finish, Micros, Op, State, Verb};

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut finals: BTreeMap<&str, Vec<(i64, State)>> = BTreeMap::new();
    for (uid, id, state) in &index.finals {
        finals.entry(uid).or_default().push((*id, *state));
    }
    for put in index.puts.values() {
        let states = finals.get(put.item.uid.as_str()).map(Vec::as_slice).unwrap_or_default();
        found.extend(lost(index, put, states));
        found.extend(ended_twice(index, put, states));
        found.extend(without_cause(index, put, states));
    }
    found.extend(stored_twice(index, &finals));
    let uids = index.uids().chain(finals.keys().copied()).collect::<BTreeSet<_>>();
    for uid in uids.into_iter().filter(|uid| !index.puts.contains_key(uid)) {
        found.push(violation(Kind::Unknown, uid, "was delivered or found, and no producer had enqueued it"));
    }
    found
}

fn violation(kind: Kind, uid: &str, text: impl Into<String>) -> Violation {
    Violation { kind, uid: Some(uid.to_owned()), text: text.into() }
}

fn lost(index: &Index<'_>, put: &Put<'_>, states: &[(i64, State)]) -> Option<Violation> {
    let uid = &put.item.uid;
    if put.acknowledged.is_none() || !states.is_empty() {
        return None;
    }
    // Where completed messages are not kept, one that a consumer has finished, or may have finished, leaves no trace.
    if !index.keeps(&put.item.queue) && index.of(uid).any(|lease| lease.finished_by(Micros::MAX)) {
        return None;
    }
    let refused = index.of(uid).any(|lease| !lease.endings.is_empty());
    let text = match refused {
        true => {
            "was acknowledged, and is neither in its queue nor in the archive; consumers that ended it were told that they had lost it, or returned it"
        }
        false => "was acknowledged, is neither in its queue nor in the archive, and no consumer ended it",
    };
    Some(violation(Kind::Lost, uid, text))
}

/// When the end of a message was accepted.
fn accepted(index: &Index<'_>, uid: &str) -> Vec<Micros> {
    let endings = index.of(uid).flat_map(|lease| &lease.endings);
    let done = endings.filter(|ending| ending.verb != Verb::Return);
    let mut times: Vec<Micros> = done
        .filter_map(|ending| ending.answer.filter(|(_, answer)| *answer == Finish::Done))
        .map(|(at, _)| at)
        .collect();
    times.sort_unstable();
    times
}

fn ended_twice(index: &Index<'_>, put: &Put<'_>, states: &[(i64, State)]) -> Option<Violation> {
    let uid = &put.item.uid;
    let accepted = accepted(index, uid);
    let first = *accepted.first()?;
    if accepted.len() > 1 {
        let text = format!("its end was accepted {} times", accepted.len());
        return Some(violation(Kind::AcceptedTwice, uid, text));
    }
    if states.iter().any(|(_, state)| *state == State::Live) {
        return Some(violation(Kind::Revived, uid, "its end was accepted, and it is in its queue"));
    }
    let again = index.of(uid).find(|lease| lease.leased.from > first + index.rules.slack)?;
    let later = (again.leased.from - first) / 1000;
    let text = format!("was delivered to {} {later} ms after its end was accepted", again.process);
    Some(violation(Kind::Revived, uid, text))
}

fn without_cause(index: &Index<'_>, put: &Put<'_>, states: &[(i64, State)]) -> Option<Violation> {
    let uid = &put.item.uid;
    let wanted = |verb: Verb| index.of(uid).any(|lease| lease.endings.iter().any(|ending| ending.verb == verb));
    states.iter().find_map(|(_, state)| match state {
        State::Dead if !wanted(Verb::Bury) => {
            Some(violation(Kind::DeadWithoutCause, uid, "is dead, and no consumer has buried it"))
        }
        State::Completed if !wanted(Verb::Complete) => {
            Some(violation(Kind::CompletedWithoutCause, uid, "is completed, and no consumer has completed it"))
        }
        State::Live => Some(violation(Kind::Undelivered, uid, "was still in its queue after the drain")),
        _ => None,
    })
}

fn stored_twice(index: &Index<'_>, finals: &BTreeMap<&str, Vec<(i64, State)>>) -> Vec<Violation> {
    let mut ids: BTreeMap<&str, BTreeSet<i64>> = BTreeMap::new();
    for call in &index.calls {
        if let (Op::Enqueue { items }, Some((_, Answer::Enqueued(found)))) = (call.op, call.answer) {
            for (item, id) in items.iter().zip(found) {
                ids.entry(&item.uid).or_default().insert(*id);
            }
        }
    }
    for lease in &index.leases {
        if let Some(id) = lease.leased.id {
            ids.entry(&lease.leased.uid).or_default().insert(id);
        }
    }
    let several = ids.into_iter().filter(|(_, ids)| ids.len() > 1);
    let several = several.map(|(uid, ids)| violation(Kind::Duplicated, uid, format!("has the ids {ids:?}")));
    let found_twice = finals.iter().filter(|(_, states)| states.len() > 1);
    let found_twice =
        found_twice.map(|(uid, states)| violation(Kind::Duplicated, uid, format!("was found as {states:?}")));
    several.chain(found_twice).collect()
}
