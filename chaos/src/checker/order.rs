//! Order: per key, and per lane.

use std::collections::{BTreeMap, BTreeSet};

use super::index::{Index, Lease, Put};
use super::{Kind, Violation};
use crate::history::{Finish, Micros, State, Verb};

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut found = key_order(index);
    found.extend(lane_order(index));
    found
}

/// Whether a message was enqueued before another one, for certain: its enqueue was acknowledged before the other's began,
/// or both were in one call.
fn before(first: &Put<'_>, second: &Put<'_>) -> bool {
    let acknowledged = first.acknowledged.is_some_and(|at| at <= second.at);
    let together = first.call == second.call && first.acknowledged.is_some();
    first.item.number < second.item.number && (acknowledged || together)
}

fn grouped<'i, 'a>(
    index: &'i Index<'a>,
    group: impl Fn(&'a Put<'a>) -> Option<&'a str>,
) -> BTreeMap<&'a str, Vec<&'i Put<'a>>>
where
    'i: 'a,
{
    let mut groups: BTreeMap<&str, Vec<&Put<'_>>> = BTreeMap::new();
    for put in index.puts.values() {
        if let Some(name) = group(put) {
            groups.entry(name).or_default().push(put);
        }
    }
    for puts in groups.values_mut() {
        puts.sort_by_key(|put| put.item.number);
    }
    groups
}

fn key_order(index: &Index<'_>) -> Vec<Violation> {
    let dead: BTreeSet<&str> =
        index.finals.iter().filter(|(_, _, state)| *state == State::Dead).map(|(uid, ..)| *uid).collect();
    let mut found = Vec::new();
    for (key, puts) in grouped(index, |put| put.item.key.as_deref()) {
        let first = puts.iter().enumerate().find_map(|(n, later)| {
            index.of(&later.item.uid).find_map(|lease| {
                let earlier = puts[..n].iter().filter(|earlier| before(earlier, later));
                let skipped = earlier.filter(|earlier| !dead.contains(earlier.item.uid.as_str()));
                let skipped = skipped.filter(|earlier| !finished_or_together(index, earlier, lease));
                skipped.map(|earlier| (*earlier, lease)).next()
            })
        });
        if let Some((earlier, lease)) = first {
            let text = format!(
                "was delivered to {} while {}, an earlier message of the key '{key}', was not finished",
                lease.process, earlier.item.uid
            );
            found.push(Violation { kind: Kind::KeyOrder, uid: Some(lease.leased.uid.clone()), text });
        }
    }
    found
}

/// Whether an earlier message of the key was finished when a lease was received, or came with the same lease and before
/// it.
fn finished_or_together(index: &Index<'_>, earlier: &Put<'_>, lease: &Lease<'_>) -> bool {
    let finished = index.of(&earlier.item.uid).any(|other| other.finished_by(lease.known + index.rules.slack));
    finished
        || index.of(&earlier.item.uid).any(|other| {
            let same = other.process == lease.process && other.claim.is_some() && other.claim == lease.claim;
            same && other.leased.lease < lease.leased.lease
        })
        || zombie(index, lease)
}

/// A process that was stopped and has just been continued does not know yet that its leases are lost.
fn zombie(index: &Index<'_>, lease: &Lease<'_>) -> bool {
    lease.claim.is_none() && index.stops(lease.process, lease.known - 2_000_000, lease.known).next().is_some()
}

fn lane_order(index: &Index<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for puts in grouped(index, |put| put.item.stream.as_deref()).into_values() {
        // When each later message was in the hands of a consumer.
        let mut received: BTreeMap<Micros, &Put<'_>> = BTreeMap::new();
        let mut waiting: Vec<&Put<'_>> = Vec::new();
        for put in puts.into_iter().rev() {
            // Messages are moved to `received` one step late, so that all of them come later in the stream.
            while let Some(later) = waiting.pop() {
                if let Some(first) = index.of(&later.item.uid).next() {
                    received.insert(first.known, later);
                }
            }
            waiting.push(put);
            let fresh = |lease: &&Lease<'_>| lease.leased.attempt == 1 && lease.leased.from < index.ending;
            let Some(first) = index.of(&put.item.uid).next().filter(fresh) else { continue };
            let limit = first.leased.from - index.rules.slack;
            let overtaking = received.range(..limit).rev().find(|(_, later)| before(put, later));
            let Some((at, later)) = overtaking else { continue };
            let began = index.of(&later.item.uid).next().map_or(*at, |lease| lease.leased.from);
            if !disturbed(index, began, first.leased.from) && !returned_uncounted(index, put) {
                let text = format!(
                    "was first delivered {} ms after {}, which was enqueued later into the same lane",
                    (first.leased.from - at) / 1000,
                    later.item.uid
                );
                found.push(Violation { kind: Kind::LaneOrder, uid: Some(put.item.uid.clone()), text });
                break;
            }
        }
    }
    found
}

/// Whether a fault may have killed a statement that had locked rows in this span of time.
fn disturbed(index: &Index<'_>, from: Micros, to: Micros) -> bool {
    let Some(settle) = index.rules.settle else { return false };
    index.faults.iter().any(|at| *at >= from - settle && *at <= to)
}

/// A message that was given back keeps its attempts in some cases, and may then be overtaken.
fn returned_uncounted(index: &Index<'_>, put: &Put<'_>) -> bool {
    let endings = index.of(&put.item.uid).flat_map(|lease| &lease.endings);
    endings.into_iter().any(|ending| ending.verb == Verb::Return && !matches!(ending.answer, Some((_, Finish::Lost))))
}
