//! The verbs of a holder: complete, release, retry, extend, bury. Each is compare-and-set on a fence.
//!
//! Invariants: a verb changes a message only while its fence holds, and the holder is never refused: fences are checked on the
//! newest version of a row; every item gets its own answer; a verb that is called again answers `Already` wherever the
//! database still shows that it was done, and never does it twice; a flush that is repeated after a lost connection answers
//! with what its first attempt did ([`crate::calls`]).

use std::sync::{Arc, Mutex, PoisonError};

use crate::calls::{Attempt, Carried};
use crate::clock::{Clock, micros};
use crate::db::{Conn, Db, decode};
use crate::error::{Error, Kind, Result};
use crate::ops::reserve;
use crate::sql::{
    CALL_RECORD, MESSAGE_BURY, MESSAGE_COMPLETE, MESSAGE_COMPLETE_KEPT, MESSAGE_DRAW, MESSAGE_EXPLAIN, MESSAGE_EXTEND,
    MESSAGE_HELD, MESSAGE_POSTPONE, MESSAGE_RELEASE, MESSAGE_REQUEUE, MESSAGE_SPENT, Statement,
};
use crate::store::Store;
use crate::types::{Answer, Due, Fence, Micros, Outcome};
use crate::value::{Column, Fields, Value};

/// What a holder wants done with a message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verb {
    Complete,
    /// Back to its place, at once; `uncount` when no caller was given it, because the next lease then has the same fence.
    Release {
        uncount: bool,
    },
    /// To the tail, at once.
    Requeue,
    /// Ready again later; `uncount` when the delivery is not to count as an attempt, which only a message of a key may do at its
    /// place: the next lease would have the same fence.
    Postpone {
        due: Due,
        keep_place: bool,
        uncount: bool,
    },
    Extend(std::time::Duration),
    /// `uncount`: the claim that found it doomed was not a delivery.
    Bury {
        outcome: Outcome,
        reason: String,
        uncount: bool,
    },
}

/// One verb on one message.
#[derive(Clone, Debug)]
pub(crate) struct Finish {
    pub(crate) fence: Fence,
    pub(crate) verb: Verb,
    /// Only if the item before it was done.
    pub(crate) chained: bool,
    /// It is buried instead if it has used up its attempts.
    pub(crate) mortal: bool,
}

impl Finish {
    pub(crate) fn new(fence: Fence, verb: Verb) -> Self {
        Finish { fence, verb, chained: false, mortal: false }
    }
}

/// What a verb did to one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) answer: Answer,
    /// A message became ready here: lane and position.
    pub(crate) ready: Option<(i64, i64)>,
    /// A message will be ready later in this lane.
    pub(crate) due: Option<i64>,
    /// The lease's new end.
    pub(crate) leased_until: Option<Micros>,
    /// The same as its lane and the time that remains.
    pub(crate) expires: Option<(i64, Micros)>,
}

impl Finished {
    const fn answer(answer: Answer) -> Self {
        Finished { answer, ready: None, due: None, leased_until: None, expires: None }
    }
}

impl Verb {
    /// Verbs that share a statement; sorted so that a batch always takes its locks in one order.
    fn statement(&self, fence: &Fence) -> Statement {
        match self {
            Verb::Complete if fence.keep => MESSAGE_COMPLETE_KEPT,
            Verb::Complete => MESSAGE_COMPLETE,
            Verb::Release { .. } => MESSAGE_RELEASE,
            Verb::Requeue => MESSAGE_REQUEUE,
            Verb::Postpone { .. } => MESSAGE_POSTPONE,
            Verb::Extend(_) => MESSAGE_EXTEND,
            Verb::Bury { .. } => MESSAGE_BURY,
        }
    }
}

impl Store {
    /// Which of these fences still hold: not those of messages that were finished, deleted or leased again since. A lease that
    /// has expired holds until its message is leased again.
    pub async fn holds(&self, fences: &[Fence]) -> Result<Vec<bool>> {
        Ok(self.held(fences).await?.iter().map(Option::is_some).collect())
    }

    /// For each of these fences, if it still holds, the token of the key with which the message is leased, if it has one.
    pub(crate) async fn held(&self, fences: &[Fence]) -> Result<Vec<Option<Option<i64>>>> {
        let mut held = vec![None; fences.len()];
        let columns = fence_columns(fences.iter());
        let look = self.db().read(move |conn| {
            Box::pin(async move {
                let rows = conn.each(MESSAGE_HELD, &[], &columns).await?;
                decode(MESSAGE_HELD, &rows, |row| Ok((row.int()?, row.int_or_null()?)))
            })
        });
        for (n, token) in look.await? {
            held[n as usize] = Some(token);
        }
        Ok(held)
    }
}

/// The parameters of fences, as every statement with `{held}` takes them.
pub(crate) fn fence_columns<'a>(fences: impl Iterator<Item = &'a Fence> + Clone) -> Vec<Column> {
    vec![
        fences.clone().map(|fence| fence.id).collect(),
        fences.clone().map(|fence| fence.attempt).collect(),
        fences.clone().map(|fence| fence.worker).collect(),
        fences.clone().map(|fence| fence.lane).collect(),
        fences.map(|fence| fence.token).collect(),
    ]
}

/// Whether a batch is one statement, and so needs no transaction around it.
pub(crate) fn is_one_statement(items: &[Finish]) -> bool {
    let statement = |item: &Finish| item.verb.statement(&item.fence).index;
    items.windows(2).all(|pair| statement(&pair[0]) == statement(&pair[1]))
        && !items.iter().any(|item| item.chained || item.mortal)
}

/// Applies every verb; one answer per item, in order.
pub(crate) async fn finish(conn: &mut Conn<'_>, clock: &Clock, items: &[Finish]) -> Result<Vec<Finished>> {
    finish_some(conn, clock, items, &vec![false; items.len()], None).await
}

/// Applies every verb that is not to be skipped. `call` is the token under which what was done is recorded, in the same
/// transaction, by the places of the items.
async fn finish_some(
    conn: &mut Conn<'_>,
    clock: &Clock,
    items: &[Finish],
    skipped: &[bool],
    call: Option<i64>,
) -> Result<Vec<Finished>> {
    let judged = condemn(conn, items).await?;
    let items = judged.as_deref().unwrap_or(items);
    let statement = |n: &usize| items[*n].verb.statement(&items[*n].fence).index;
    let mut order: Vec<usize> = (0..items.len()).filter(|n| !skipped[*n]).collect();
    // One order for all callers: two batches that share messages then cannot deadlock.
    order.sort_unstable_by_key(|n| (statement(n), items[*n].fence.id));
    let groups: Vec<&[usize]> = order.chunk_by(|a, b| statement(a) == statement(b)).collect();
    let whole = groups.len() == 1 && order.len() == items.len();
    let skip = |skipped: &bool| skipped.then_some(Finished::answer(Answer::Skipped));
    let mut answers: Vec<Option<Finished>> = skipped.iter().map(skip).collect();
    for group in &groups {
        // A single statement records the call itself.
        apply(conn, clock, items, group, call.filter(|_| whole), &mut answers).await?;
    }
    if let Some(call) = call.filter(|_| !whole) {
        let done = |n: &usize| answers[*n].is_some_and(|answer| answer.answer == Answer::Done);
        let done: Vec<i64> = order.iter().filter(|n| done(n)).map(|n| *n as i64).collect();
        conn.execute(CALL_RECORD, &[Value::Int(call), Value::Ints(done)]).await?;
    }
    explain(conn, items, answers).await
}

/// Applies every verb in one transaction of its own. Where an item of a chain is not done, the rest of the chain is left
/// alone: the transaction is rolled back and tried again without it, so only failures pay.
///
/// A caller that may name any id is not told that what is gone was a repeat of its own: it does not know under which attempt
/// it held the message.
pub(crate) async fn finish_chains(
    db: &Db,
    clock: &Clock,
    items: &Arc<Vec<Finish>>,
    attempt: &Attempt,
) -> Result<Vec<Finished>> {
    let mut skipped = vec![false; items.len()];
    loop {
        let rest = Arc::new(Mutex::new(Vec::new()));
        let (clock, batch, skip, broke, attempt) =
            (clock.clone(), items.clone(), skipped.clone(), rest.clone(), attempt.clone());
        let act = db.commit(attempt.is_first() && is_one_statement(items), move |conn| {
            Box::pin(async move {
                let mut finished = match attempt.carried_out(conn).await? {
                    Some(carried) => recall(conn, &clock, &batch, &carried).await?,
                    None => finish_some(conn, &clock, &batch, &skip, attempt.token).await?,
                };
                for (item, finished) in batch.iter().zip(&mut finished) {
                    if finished.answer == Answer::Already && item.fence.lane.is_some() {
                        finished.answer = Answer::Lost;
                    }
                }
                let left_alone = broken(&batch, &finished);
                let held = left_alone.iter().all(|n| finished[*n].answer != Answer::Done);
                *broke.lock().unwrap_or_else(PoisonError::into_inner) = left_alone;
                if held { Ok(finished) } else { Err(Error::new(Kind::InvalidState, "a chain of verbs was broken")) }
            })
        });
        let finished = act.await;
        let rest = std::mem::take(&mut *rest.lock().unwrap_or_else(PoisonError::into_inner));
        match finished {
            Err(error) if rest.is_empty() || error.kind() != Kind::InvalidState => return Err(error),
            Err(_) => rest.into_iter().for_each(|n| skipped[n] = true),
            Ok(mut finished) => {
                rest.into_iter().for_each(|n| finished[n] = Finished::answer(Answer::Skipped));
                return Ok(finished);
            }
        }
    }
}

/// The answers of a call that was carried out although its reply was lost. Leases that it extended are extended again: their
/// new ends are not recorded, and an extension can be repeated without harm.
async fn recall(conn: &mut Conn<'_>, clock: &Clock, items: &[Finish], carried: &Carried) -> Result<Vec<Finished>> {
    let is_extension = |n: &usize| matches!(items[*n].verb, Verb::Extend(_));
    let mut answers: Vec<Option<Finished>> = (0..items.len())
        .map(|n| (carried.has(n) && !is_extension(&n)).then_some(Finished::answer(Answer::Done)))
        .collect();
    let extensions: Vec<usize> = (0..items.len()).filter(is_extension).collect();
    if !extensions.is_empty() {
        apply(conn, clock, items, &extensions, None, &mut answers).await?;
    }
    explain(conn, items, answers).await
}

/// What must be left alone because an item before it in its chain was not done. Empty: every chain held.
pub(crate) fn broken(items: &[Finish], finished: &[Finished]) -> Vec<usize> {
    let mut left_alone = Vec::new();
    let mut held = true;
    for (n, (item, finished)) in items.iter().zip(finished).enumerate() {
        held |= !item.chained;
        if !held {
            left_alone.push(n);
        }
        held &= matches!(finished.answer, Answer::Done | Answer::Already);
    }
    left_alone
}

/// The same items with those that have used up their attempts to be buried; none when nobody is.
async fn condemn(conn: &mut Conn<'_>, items: &[Finish]) -> Result<Option<Vec<Finish>>> {
    let mortal: Vec<usize> = (0..items.len()).filter(|n| items[*n].mortal).collect();
    let ids: Column = mortal.iter().map(|n| items[*n].fence.id).collect();
    let rows = conn.each(MESSAGE_SPENT, &[], &[ids]).await?;
    if rows.is_empty() {
        return Ok(None);
    }
    let mut judged = items.to_vec();
    for row in rows {
        let n = mortal[row.fields(MESSAGE_SPENT.name).int()? as usize];
        let reason = "retried after its last attempt".to_owned();
        judged[n].verb = Verb::Bury { outcome: Outcome::Dead, reason, uncount: false };
    }
    Ok(Some(judged))
}

async fn apply(
    conn: &mut Conn<'_>,
    clock: &Clock,
    items: &[Finish],
    group: &[usize],
    call: Option<i64>,
    answers: &mut [Option<Finished>],
) -> Result<()> {
    let member = |n: &usize| &items[*n];
    let statement = member(&group[0]).verb.statement(&member(&group[0]).fence);
    let mut columns = fence_columns(group.iter().map(|n| &items[*n].fence));
    let (now, call) = (clock.value(), Value::from(call));
    let fixed = match &member(&group[0]).verb {
        Verb::Complete if statement.index == MESSAGE_COMPLETE_KEPT.index => vec![now, call],
        Verb::Complete => vec![call],
        Verb::Release { .. } => {
            let uncount = |n: &usize| i64::from(member(n).verb == Verb::Release { uncount: true });
            columns.push(group.iter().map(uncount).collect());
            vec![call]
        }
        Verb::Requeue => {
            // A call's messages stand at the tail in its own order, whatever the order in which their rows are locked.
            let ordered = group.is_sorted() || !group.iter().all(|n| member(n).mortal);
            let ids = if ordered { reserve(conn, group.len()).await? } else { in_order(conn, group).await? };
            columns.push(ids);
            vec![call]
        }
        Verb::Postpone { .. } => {
            postpone_columns(group.iter().map(|n| &member(n).verb), &mut columns);
            vec![now, call]
        }
        Verb::Extend(_) => {
            let extra = |n: &usize| match member(n).verb {
                Verb::Extend(extra) => micros(extra),
                _ => 0,
            };
            columns.push(group.iter().map(extra).collect());
            vec![now]
        }
        Verb::Bury { .. } => {
            columns.push(reserve(conn, group.len()).await?);
            bury_columns(group.iter().map(|n| &member(n).verb), &mut columns);
            vec![now, call]
        }
    };
    columns.push(group.iter().map(|n| *n as i64).collect());
    for row in conn.each(statement, &fixed, &columns).await? {
        let mut row = row.fields(statement.name);
        let n = row.int()? as usize;
        answers[n] = Some(done(&items[n].verb, &mut row)?);
    }
    Ok(())
}

/// Ids for a group of items, growing with their places in the call. Needs a transaction.
async fn in_order(conn: &mut Conn<'_>, group: &[usize]) -> Result<Column> {
    let ids = match reserve(conn, group.len()).await? {
        Column::Ints(ids) => ids,
        _ => {
            let rows = conn.query(MESSAGE_DRAW, &[Value::Int(group.len() as i64)]).await?;
            decode(MESSAGE_DRAW, &rows, |row| row.int().map(Some))?
        }
    };
    let mut places: Vec<usize> = (0..group.len()).collect();
    places.sort_unstable_by_key(|place| group[*place]);
    let mut column = vec![None; group.len()];
    for (place, id) in places.into_iter().zip(ids) {
        column[place] = id;
    }
    Ok(Column::Ints(column))
}

fn postpone_columns<'a>(verbs: impl Iterator<Item = &'a Verb>, columns: &mut Vec<Column>) {
    let (mut at, mut delay, mut keep, mut uncounts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for verb in verbs {
        if let Verb::Postpone { due, keep_place, uncount } = verb {
            at.push(if let Due::At(at) = due { Some(*at) } else { None });
            delay.push(if let Due::In(delay) = due { Some(micros(*delay)) } else { None });
            keep.push(*keep_place);
            uncounts.push(Some(i64::from(*uncount)));
        }
    }
    columns.extend([Column::Ints(at), Column::Ints(delay), Column::Bools(keep), Column::Ints(uncounts)]);
}

fn bury_columns<'a>(verbs: impl Iterator<Item = &'a Verb>, columns: &mut Vec<Column>) {
    let (mut outcomes, mut reasons, mut uncounts) = (Vec::new(), Vec::new(), Vec::new());
    for verb in verbs {
        if let Verb::Bury { outcome, reason, uncount } = verb {
            outcomes.push(Some(outcome.name().to_owned()));
            reasons.push(Some(reason.clone()));
            uncounts.push(Some(i64::from(*uncount)));
        }
    }
    columns.extend([Column::Texts(outcomes), Column::Texts(reasons), Column::Ints(uncounts)]);
}

/// Reads what a statement returned for one message, behind its ordinal.
fn done(verb: &Verb, row: &mut Fields<'_>) -> Result<Finished> {
    let mut done = Finished::answer(Answer::Done);
    match verb {
        Verb::Complete => {}
        Verb::Release { .. } | Verb::Requeue => {
            let id = row.int()?;
            done.ready = Some((row.int()?, id));
        }
        Verb::Postpone { .. } => done.due = Some(row.int()?),
        Verb::Extend(_) => {
            done.leased_until = Some(row.int()?);
            done.expires = Some((row.int()?, row.int()?));
        }
        Verb::Bury { .. } => {
            let (lane, id) = (row.int_or_null()?, row.int_or_null()?);
            done.ready = lane.zip(id);
        }
    }
    Ok(done)
}

/// Completes the answers: finds out why verbs without one changed nothing. Only misses pay for this.
async fn explain(conn: &mut Conn<'_>, items: &[Finish], mut answers: Vec<Option<Finished>>) -> Result<Vec<Finished>> {
    let missed: Vec<usize> = (0..items.len()).filter(|n| answers[*n].is_none()).collect();
    let ids: Column = missed.iter().map(|n| items[*n].fence.id).collect();
    for row in conn.each(MESSAGE_EXPLAIN, &[], &[ids]).await? {
        let mut row = row.fields(MESSAGE_EXPLAIN.name);
        let n = missed[row.int()? as usize];
        let (place, attempts, leased_until) = (row.text()?, row.int()?, row.int()?);
        let found = judge(&items[n], &place, attempts, leased_until);
        // A message is in one place, but what it left behind may be in another: the better answer wins.
        if answers[n].is_none_or(|known| known.answer != Answer::Already) {
            answers[n] = Some(Finished::answer(found));
        }
    }
    Ok(answers.into_iter().map(|answer| answer.unwrap_or(Finished::answer(Answer::Unknown))).collect())
}

/// A miss is a repeat when the message is exactly where this verb, under this fence, would have put it.
fn judge(item: &Finish, place: &str, attempts: i64, leased_until: Micros) -> Answer {
    let same = item.fence.attempt.is_none_or(|attempt| attempt == attempts);
    let free = leased_until == 0;
    let repeat = match (&item.verb, place) {
        (Verb::Complete, "completed") => same,
        (Verb::Release { uncount: false }, "live") => same && free,
        (Verb::Requeue, "moved") => same && free,
        (Verb::Postpone { uncount, .. }, "scheduled") => {
            item.fence.attempt.is_none_or(|attempt| attempt == attempts + i64::from(*uncount))
        }
        (Verb::Requeue | Verb::Postpone { .. }, "dead") => same && item.mortal,
        (Verb::Bury { uncount, .. }, "dead" | "expired") => {
            item.fence.attempt.is_none_or(|attempt| attempt == attempts + i64::from(*uncount))
        }
        _ => false,
    };
    if repeat { Answer::Already } else { Answer::Lost }
}
