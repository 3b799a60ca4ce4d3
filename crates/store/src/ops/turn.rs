//! Turns: an instance is leased with the messages that wait for it, and everything it did is committed in one act.
//!
//! Invariants: one holder per instance, by compare-and-set on the instance's row; a turn ends only under the lease that it
//! began with; messages that arrive meanwhile are not part of it; the history that a fetch returns is never older than its
//! lease.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::micros;
use crate::combine::Flush;
use crate::db::{Conn, List, decode};
use crate::error::{Error, Kind, Result, invalid};
use crate::ops::check_text;
use crate::ops::queue::check_duration;
use crate::sql::{Statement, TURN_ABANDON, TURN_ACK, TURN_DROP, TURN_ENQUEUE, TURN_FETCH, TURN_PARK, TURN_RENEW};
use crate::store::{Shared, Store, after};
use crate::types::{
    Acked, HistoryEvent, KeptValue, Known, NewTurnMessage, NewWork, Turn, TurnAck, TurnClaim, TurnMessage, TurnToken,
    ValueChange,
};
use crate::value::{Column, Row, Value};
use crate::wait::times::Next;
use crate::wait::turns::TurnWant;
use rand::Rng as _;

/// The parts of an answer, as the statements number them.
const INSTANCE: i64 = 0;
const MESSAGE: i64 = 1;
pub(crate) const EVENT: i64 = 2;

/// How soon a parked message is looked at again: after its first look, and at most. An acknowledgement finds the messages of
/// its turn up to an hour ahead, so it must stay far below that.
const STRAY_FIRST: Duration = Duration::from_secs(1);
const STRAY_MOST: Duration = Duration::from_secs(60);
/// How often a parked message is looked at before it is dropped: about eleven minutes.
const STRAY_LOOKS: i64 = 16;

/// A turn that ends; those that end at the same time share a transaction.
pub(crate) type EndedTurn = (TurnToken, TurnAck);

/// The instance's incarnation and its turns if it was acknowledged now, whether it had been before, and whether messages wait.
pub(crate) type AckedTurn = (Option<(i64, i64)>, bool, bool);

impl Store {
    /// Sends a message to an instance. A repeat with the same nonce, while the message waits, sends nothing.
    pub async fn turn_enqueue(&self, instance: &str, item: String, delay: Duration, nonce: i64) -> Result<()> {
        check_text("the instance's id", instance, 4096)?;
        let columns = [
            Column::Texts(vec![Some(instance.to_owned())]),
            [micros(delay)].into_iter().collect(),
            [nonce].into_iter().collect(),
            Column::Texts(vec![Some(item)]),
        ];
        let fixed = [self.clock().value()];
        self.db()
            .write(move |conn| Box::pin(async move { conn.each(TURN_ENQUEUE, &fixed, &columns).await.map(drop) }))
            .await?;
        if delay.is_zero() {
            self.shared().hub.turn_ready(instance);
        } else {
            self.shared().hub.turn_later(delay);
        }
        Ok(())
    }

    /// Leases an instance that has messages: at once if there is one, else as soon as there is, else none when the wait is
    /// over. `known` is asked, before every look, for histories that need not be sent again.
    pub async fn turn_fetch(
        &self,
        claim: &TurnClaim,
        known: impl Fn() -> Vec<Known> + Send + Sync + 'static,
    ) -> Result<Option<Turn>> {
        check_duration("the lease", claim.lease)?;
        let shared = self.shared();
        let want = TurnWant { lease: claim.lease, pinned: claim.pinned, known: Arc::new(known) };
        let held = shared.hub.turns.wait(shared, want, after(claim.wait)).await?;
        Ok(held.map(|held| held.keep().it))
    }

    /// Ends a turn: everything in `ack` is committed, its messages are gone, the instance is free.
    ///
    /// # Errors
    /// `AlreadyExists` when one of the events is there already; nothing is committed then.
    pub async fn turn_ack(&self, token: &TurnToken, ack: TurnAck) -> Result<Acked> {
        if ack.events.iter().any(|event| event.id <= 0) {
            return Err(invalid("an event has no number: its writer must give it one"));
        }
        let bytes = ack.events.iter().map(|event| event.data.len()).sum();
        let acked = self.combiners().turn_acks.call(vec![(token.clone(), ack)], bytes).await;
        let (done, already, _) = acked.map_err(|error| match error.kind() {
            Kind::AlreadyExists => {
                let message = format!("instance '{}' already has one of these events", token.instance);
                Error::new(Kind::AlreadyExists, message).with_source(error)
            }
            _ => error,
        })?[0];
        Ok(match done {
            Some((born, turns)) => Acked::Done { born, turns },
            None if already => Acked::Already,
            None => Acked::Lost,
        })
    }

    /// Gives a turn back: its messages can be fetched again, at once or after `delay`, and this fetch counts or not.
    /// Whether the lease was still there.
    pub async fn turn_abandon(&self, token: &TurnToken, delay: Option<Duration>, uncount: bool) -> Result<bool> {
        self.shared().abandon_turn(token, delay, uncount).await
    }

    /// Ends a turn by dropping its messages.
    pub async fn turn_drop(&self, token: &TurnToken) -> Result<()> {
        let params = [token.instance.as_str().into(), Value::Int(token.token)];
        self.db().write(move |conn| Box::pin(async move { conn.query(TURN_DROP, &params).await.map(drop) })).await?;
        // Without this a start that follows was not announced while the dropped turn's lease would have lasted: 2.6 s.
        self.shared().hub.turn_ends(&token.instance, false);
        Ok(())
    }

    /// Ends a turn of an instance that has not been started: its messages wait for the start, and come with it in the first
    /// turn. The fetch does not count as an attempt. Returns how many messages were dropped because no start came for too
    /// long.
    pub async fn turn_park(&self, token: &TurnToken) -> Result<usize> {
        let params = [
            self.clock().value(),
            token.instance.as_str().into(),
            Value::Int(token.token),
            Value::Int(micros(STRAY_FIRST)),
            Value::Int(micros(STRAY_MOST)),
            Value::Int(STRAY_LOOKS),
        ];
        let act = self.db().write(move |conn| {
            Box::pin(async move {
                let rows = conn.query(TURN_PARK, &params).await?;
                let mut row = rows[0].fields(TURN_PARK.name);
                Ok((row.int()?, row.int_or_null()?, row.bool()?))
            })
        });
        let (dropped, next, more) = act.await?;
        let hub = &self.shared().hub;
        hub.turn_ends(&token.instance, more);
        if let Some(next) = next {
            hub.turn_later(Duration::from_micros(next.max(0).unsigned_abs()));
        }
        Ok(usize::try_from(dropped).unwrap_or(usize::MAX))
    }

    /// Keeps a turn's lease until `lease` from now. Whether it was still there.
    pub async fn turn_renew(&self, token: &TurnToken, lease: Duration) -> Result<bool> {
        let params =
            [self.clock().value(), token.instance.as_str().into(), Value::Int(token.token), Value::Int(micros(lease))];
        let act = self.db().write(move |conn| Box::pin(async move { conn.execute(TURN_RENEW, &params).await }));
        Ok(act.await? > 0)
    }
}

impl Shared {
    /// Asks the database what will come, and what came within the time `since`.
    pub(crate) async fn next(&self, statement: Statement, since: Duration) -> Result<Next> {
        let params = [self.hub.clock.value(), Value::Int(micros(since))];
        let act = self.hub.db.read(move |conn| {
            Box::pin(async move {
                let rows = conn.query(statement, &params).await?;
                let mut row = rows[0].fields(statement.name);
                let after = row.int_or_null()?;
                let blocked = row.bool()?;
                Ok(Next { after: after.map(|after| Duration::from_micros(after.max(0).unsigned_abs())), blocked })
            })
        });
        act.await
    }

    pub(crate) async fn abandon_turn(&self, token: &TurnToken, delay: Option<Duration>, uncount: bool) -> Result<bool> {
        let params = [
            self.hub.clock.value(),
            token.instance.as_str().into(),
            Value::Int(token.token),
            delay.map(micros).into(),
            Value::Int(uncount.into()),
        ];
        let act = self.hub.db.write(move |conn| {
            Box::pin(async move {
                let rows = conn.query(TURN_ABANDON, &params).await?;
                rows[0].fields(TURN_ABANDON.name).int()
            })
        });
        let done = act.await? > 0;
        self.hub.turn_ends(&token.instance, done && delay.is_none());
        if let Some(delay) = delay.filter(|_| done) {
            self.hub.turn_later(delay);
        }
        Ok(done)
    }
}

/// A token that nobody has: positive, because SQLite marks what is being ended with its negative; and with room above,
/// because each row of a batch adds a number of its own.
pub(crate) fn new_token() -> i64 {
    rand::rng().random_range(1..=i64::MAX / 2)
}

impl Shared {
    /// Leases turns for so many fetches that ask for the same.
    pub(crate) async fn take_turns(&self, want: &TurnWant, count: usize) -> Result<Vec<Turn>> {
        let (clock, lease, pinned, known) = (self.hub.clock.value(), want.lease, want.pinned, (want.known)());
        let act = self
            .hub
            .db
            .write(move |conn| Box::pin(async move { take_turns(conn, clock, (lease, pinned), known, count).await }));
        let turns = act.await?;
        for turn in &turns {
            self.hub.turn_begins(&turn.token.instance, lease);
        }
        Ok(turns)
    }
}

/// Up to so many turns. A statement may return fewer than there are: it is asked again while it says so.
async fn take_turns(
    conn: &mut Conn<'_>,
    clock: Value,
    (lease, pinned): (Duration, Option<(i64, i64)>),
    known: Vec<Known>,
    count: usize,
) -> Result<Vec<Turn>> {
    let (least, most) = pinned.unzip();
    let list: List = vec![
        known.iter().map(|known| known.instance.clone()).collect(),
        known.iter().map(|known| known.born).collect(),
        known.iter().map(|known| known.execution).collect(),
        known.iter().map(|known| known.last).collect(),
    ];
    let lists = [list];
    let mut turns: Vec<Turn> = Vec::with_capacity(count);
    while turns.len() < count {
        let (token, wanted) = (new_token(), (count - turns.len()) as i64);
        let fixed = [
            clock.clone(),
            Value::Int(token),
            Value::Int(micros(lease)),
            least.into(),
            most.into(),
            Value::Int(wanted),
        ];
        let began = Instant::now();
        let (found, looked_at) = read_turns(&conn.act(TURN_FETCH, &fixed, &lists).await?, began)?;
        let last = found.is_empty() || looked_at < wanted;
        turns.extend(found);
        if last {
            break;
        }
    }
    Ok(turns)
}

/// The turns of an answer, and how many messages the statement looked at.
fn read_turns(rows: &[Row], began: Instant) -> Result<(Vec<Turn>, i64)> {
    let mut turns: Vec<Turn> = Vec::new();
    let mut looked_at = 0;
    let mut places: HashMap<String, usize> = HashMap::new();
    decode(TURN_FETCH, rows, |row| {
        let (part, instance) = (row.int()?, row.text()?);
        let (id, n) = (row.int_or_null()?.unwrap_or(0), row.int_or_null()?.unwrap_or(0));
        let (m, k) = (row.int_or_null()?, row.int_or_null()?);
        let (token, turn) = (row.int_or_null()?, row.int_or_null()?);
        if part == INSTANCE {
            places.insert(instance.clone(), turns.len());
            looked_at = m.unwrap_or(0);
            turns.push(Turn {
                token: TurnToken { instance, token: token.unwrap_or(0), values: false },
                born: id,
                turns: turn.unwrap_or(0),
                execution: n,
                name: row.text_or_null()?,
                version: row.text_or_null()?,
                messages: Vec::new(),
                history: Vec::new(),
                known: k.unwrap_or(0),
                values: Vec::new(),
                took: began.elapsed(),
            });
            return Ok(());
        }
        // The rows of an instance follow the instance itself; what belongs to none was tagged without a lease.
        let Some(turn) = places.get(&instance).and_then(|at| turns.get_mut(*at)) else { return Ok(()) };
        match part {
            MESSAGE => turn.messages.push(TurnMessage { id, attempts: n, item: row.text()? }),
            EVENT => turn.history.push(HistoryEvent { id, data: row.text()? }),
            _ => {
                turn.token.values = true;
                let key = row.text()?;
                if let Some(value) = row.text_or_null()? {
                    turn.values.push(KeptValue { key, value, updated_at: n });
                }
            }
        }
        Ok(())
    })?;
    for turn in &mut turns {
        turn.messages.sort_unstable_by_key(|message| message.id);
        turn.history.sort_unstable_by_key(|event| event.id);
    }
    Ok((turns, looked_at))
}

/// Acknowledges merged turns. Two acknowledgements of one instance cannot share a statement.
pub(crate) fn turn_ack_flush(shared: Arc<Shared>) -> Flush<EndedTurn, AckedTurn> {
    Arc::new(move |ended| {
        let shared = shared.clone();
        Box::pin(async move {
            let mut answers: Vec<AckedTurn> = vec![(None, false, false); ended.len()];
            let mut left: Vec<(usize, EndedTurn)> =
                Arc::try_unwrap(ended).unwrap_or_else(|ended| (*ended).clone()).into_iter().enumerate().collect();
            while !left.is_empty() {
                let mut seen = HashSet::new();
                let (batch, rest): (Vec<_>, Vec<_>) =
                    left.into_iter().partition(|(_, (token, _))| seen.insert(token.instance.clone()));
                left = rest;
                let fixed_now = shared.hub.clock.fixed_now();
                let mut told: HashMap<String, (usize, News)> = batch
                    .iter()
                    .map(|(at, (token, ack))| (token.instance.clone(), (*at, News::of(ack, fixed_now))))
                    .collect();
                let (fixed, lists) = bind_acks(batch, shared.hub.clock.value());
                let act = shared.hub.db.write(move |conn| {
                    Box::pin(async move {
                        decode(TURN_ACK, &conn.act(TURN_ACK, &fixed, &lists).await?, |row| {
                            let (instance, born, turns) = (row.text()?, row.int_or_null()?, row.int_or_null()?);
                            Ok((instance, (born.zip(turns), row.bool()?, row.bool()?)))
                        })
                    })
                });
                for (instance, acked) in act.await? {
                    let Some((at, news)) = told.remove(&instance) else { continue };
                    let (done, _, more) = acked;
                    shared.hub.turn_ends(&instance, more);
                    if done.is_some() {
                        news.tell(&shared.hub);
                    }
                    answers[at] = acked;
                }
                told.into_keys().for_each(|instance| shared.hub.turn_ends(&instance, false));
            }
            Ok(answers)
        })
    })
}

/// A column of texts, taken out of their rows.
fn texts<T>(rows: &mut [T], take: impl Fn(&mut T) -> Option<String>) -> Column {
    Column::Texts(rows.iter_mut().map(take).collect())
}

fn ints<T>(rows: &[T], read: impl Fn(&T) -> Option<i64>) -> Column {
    rows.iter().map(read).collect()
}

/// One list for each kind of thing that the turns leave behind; each row begins with the instance whose turn it was.
fn bind_acks(batch: Vec<(usize, EndedTurn)>, clock: Value) -> (Vec<Value>, Vec<List>) {
    let (mut events, mut work, mut cancelled) = (Vec::new(), Vec::new(), Vec::new());
    let (mut messages, mut values) = (Vec::new(), Vec::new());
    let mut acks: Vec<(TurnToken, TurnAck, bool, usize)> = Vec::with_capacity(batch.len());
    let mut touches_values = false;
    for (_, (token, mut ack)) in batch {
        let turn = &token.instance;
        let dropped: HashSet<_> = ack.cancelled.iter().collect();
        let is_wanted = |work: &NewWork| work.activity.as_ref().is_none_or(|activity| !dropped.contains(activity));
        work.extend(std::mem::take(&mut ack.work).into_iter().filter(is_wanted).map(|work| (turn.clone(), work)));
        cancelled.extend(ack.cancelled.drain(..).map(|activity| (turn.clone(), activity)));
        let count = ack.events.len();
        events.extend(ack.events.drain(..).map(|event| (turn.clone(), ack.execution, event)));
        messages.extend(ack.messages.drain(..).map(|message| (turn.clone(), message)));
        let (clear, last) = reduce(std::mem::take(&mut ack.values));
        touches_values |= clear || token.values || !last.is_empty();
        values.extend(last.into_iter().map(|(key, (value, at))| (turn.clone(), key, value, at)));
        acks.push((token, ack, clear, count));
    }
    let own = |instance: &mut String| Some(std::mem::take(instance));
    let lists = vec![
        ack_columns(&mut acks),
        vec![
            texts(&mut events, |row| own(&mut row.0)),
            ints(&events, |row| Some(row.1)),
            ints(&events, |row| Some(row.2.id)),
            texts(&mut events, |row| own(&mut row.2.data)),
        ],
        work_columns(&mut work),
        vec![
            texts(&mut cancelled, |row| own(&mut row.0)),
            texts(&mut cancelled, |row| own(&mut row.1.instance)),
            ints(&cancelled, |row| Some(row.1.execution)),
            ints(&cancelled, |row| Some(row.1.id)),
        ],
        vec![
            texts(&mut messages, |row| own(&mut row.0)),
            texts(&mut messages, |row| own(&mut row.1.instance)),
            ints(&messages, |row| row.1.visible_at),
            texts(&mut messages, |row| own(&mut row.1.item)),
        ],
        vec![
            texts(&mut values, |row| own(&mut row.0)),
            texts(&mut values, |row| own(&mut row.1)),
            texts(&mut values, |row| row.2.take()),
            ints(&values, |row| Some(row.3)),
        ],
    ];
    (vec![clock, Value::Bool(touches_values)], lists)
}

fn ack_columns(acks: &mut [(TurnToken, TurnAck, bool, usize)]) -> List {
    let is_terminal = |ack: &TurnAck| matches!(ack.status.as_deref(), Some("Completed" | "Failed" | "ContinuedAsNew"));
    let terminal = acks.iter().map(|(_, ack, ..)| is_terminal(ack)).collect();
    let custom = acks.iter().map(|(_, ack, ..)| ack.custom_status.is_some()).collect();
    let (names, versions): (Vec<_>, Vec<_>) = acks.iter_mut().map(|(_, ack, ..)| ack.named.take().unzip()).unzip();
    vec![
        texts(acks, |(token, ..)| Some(token.instance.clone())),
        ints(acks, |(token, ..)| Some(token.token)),
        ints(acks, |(_, ack, ..)| Some(ack.execution)),
        Column::Texts(names),
        Column::Texts(versions),
        texts(acks, |(_, ack, ..)| ack.parent.take()),
        texts(acks, |(_, ack, ..)| ack.status.take()),
        texts(acks, |(_, ack, ..)| ack.output.take()),
        ints(acks, |(_, ack, ..)| ack.pinned),
        Column::Bools(custom),
        texts(acks, |(_, ack, ..)| ack.custom_status.take().flatten()),
        Column::Bools(acks.iter().map(|(_, _, clear, _)| *clear).collect()),
        Column::Bools(terminal),
        ints(acks, |(.., events)| Some(*events as i64)),
    ]
}

fn work_columns(work: &mut [(String, NewWork)]) -> List {
    let executions = ints(work, |(_, work)| work.activity.as_ref().map(|activity| activity.execution));
    let ids = ints(work, |(_, work)| work.activity.as_ref().map(|activity| activity.id));
    vec![
        texts(work, |(turn, _)| Some(std::mem::take(turn))),
        texts(work, |(_, work)| work.activity.take().map(|activity| activity.instance)),
        executions,
        ids,
        texts(work, |(_, work)| work.session.take()),
        texts(work, |(_, work)| work.tag.take()),
        texts(work, |(_, work)| Some(std::mem::take(&mut work.item))),
    ]
}

/// What a turn's changes come to: whether everything else is removed, and the last word on each key.
fn reduce(changes: Vec<ValueChange>) -> (bool, HashMap<String, (Option<String>, i64)>) {
    let mut clear = false;
    let mut last = HashMap::new();
    for change in changes {
        match change {
            ValueChange::Set { key, value, at } => last.insert(key, (Some(value), at)),
            ValueChange::Remove { key } => last.insert(key, (None, 0)),
            ValueChange::Clear => {
                clear = true;
                last.clear();
                None
            }
        };
    }
    (clear, last)
}

/// What an acknowledgement makes ready, for those who wait in this process and in others.
struct News {
    /// Instances that have a message to look at, and when the earliest of the later ones comes.
    instances: Vec<String>,
    next: Option<Duration>,
    /// Tags of new activities, and whether they are of a session.
    work: Vec<(Option<String>, bool)>,
}

impl News {
    fn of(ack: &TurnAck, fixed_now: Option<i64>) -> Self {
        let clock = fixed_now.unwrap_or_else(wall_clock);
        let later = |message: &NewTurnMessage| message.visible_at.filter(|at| *at > clock);
        let next = ack.messages.iter().filter_map(later).min();
        let now = ack.messages.iter().filter(|message| later(message).is_none());
        News {
            instances: now.map(|message| message.instance.clone()).collect(),
            next: next.map(|at| Duration::from_micros((at - clock).unsigned_abs())),
            work: ack.work.iter().map(|work| (work.tag.clone(), work.session.is_some())).collect(),
        }
    }

    fn tell(self, hub: &crate::wait::hub::Hub) {
        for instance in self.instances {
            hub.turn_ready(&instance);
        }
        if let Some(next) = self.next {
            hub.turn_later(next);
        }
        for (tag, session) in self.work {
            hub.work_ready(tag.as_deref(), session);
        }
    }
}

/// Only to guess when a timer is due: the database's clock decides.
fn wall_clock() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, micros)
}
