//! Every call is answered in its time.

use super::index::{Call, Index};
use super::{Kind, Violation};
use crate::history::{Micros, Op};

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    index.calls.iter().filter_map(|call| late(index, call)).collect()
}

fn late(index: &Index<'_>, call: &Call<'_>) -> Option<Violation> {
    let until = call.answer.map_or_else(|| index.end_of(call.process), |(at, _)| at);
    let mut paused: Vec<(Micros, Micros)> = index.stops(call.process, call.at, until).collect();
    paused.extend(call.server.into_iter().flat_map(|server| index.stops(server, call.at, until)));
    let paused: Micros = paused.into_iter().map(|(from, to)| to.min(until) - from.max(call.at)).sum();
    let took = until - call.at - paused;
    if took <= call.within + index.rules.late {
        return None;
    }
    let verb = match call.op {
        Op::Open => "open",
        Op::Enqueue { .. } => "enqueue",
        Op::Lease { .. } => "lease",
        Op::Finish { .. } => "finish",
        Op::Extend { .. } => "extend",
    };
    let answered = if call.answer.is_some() { "was answered" } else { "was not answered" };
    let (took, within) = (took / 1000, call.within / 1000);
    let text =
        format!("call {} ({verb}) of {} {answered} after {took} ms, promised {within} ms", call.number, call.process);
    Some(Violation { kind: Kind::Late, uid: None, text })
}
