//! Turns: an instance is leased with the messages that wait for it, and everything it did is committed in one act.
//!
//! Invariants: one holder per instance, by compare-and-set on the instance's row; a turn ends only under the lease that it
//! began with; messages that arrive meanwhile are not part of it; the history that a fetch returns is never older than its
//! lease.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use rand::Rng as _;
use tokio::sync::oneshot;

use crate::bell::Look;
use crate::clock::micros;
use crate::db::{List, decode};
use crate::error::{Error, Kind, Result, invalid};
use crate::ops::check_text;
use crate::ops::queue::check_duration;
use crate::receipt::Receipt;
use crate::sql::{TURN_ABANDON, TURN_ACK, TURN_DROP, TURN_ENQUEUE, TURN_FETCH, TURN_RENEW};
use crate::store::{Shared, Store, after};
use crate::types::{
    Acked, HistoryEvent, KeptValue, Known, NewTurnMessage, NewWork, Turn, TurnAck, TurnClaim, TurnMessage, TurnToken,
    ValueChange,
};
use crate::value::{Column, Row, Value};

/// The parts of an answer, as the statements number them.
const INSTANCE: i64 = 0;
const MESSAGE: i64 = 1;
pub(crate) const EVENT: i64 = 2;
const VALUE: i64 = 3;
pub(crate) const NOTHING: i64 = 9;

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
        self.shared().hub.turn_in(delay);
        Ok(())
    }

    /// Leases an instance that has messages: at once if there is one, else as soon as there is, else none when the wait is
    /// over. `known` is asked, before every look, for histories that need not be sent again.
    pub async fn turn_fetch(&self, claim: &TurnClaim, known: impl Fn() -> Vec<Known> + Sync) -> Result<Option<Turn>> {
        check_duration("the lease", claim.lease)?;
        let hub = &self.shared().hub;
        let look = || async {
            let (reply, answer) = oneshot::channel();
            // A task of its own: a lease that its caller no longer waits for is given back, not left to run out.
            let (shared, claim, known) = (self.shared().clone(), claim.clone(), known());
            tokio::spawn(async move {
                let looked = shared.look_for_turn(&claim, known).await;
                if let Err(Ok(Look::Found(turn))) = reply.send(looked) {
                    shared.give_turn_back(turn);
                }
            });
            let back = |look| {
                if let Look::Found(turn) = look {
                    self.shared().give_turn_back(turn);
                }
            };
            Receipt::new(answer, back).wait().await
        };
        hub.turns.wait(hub, &claim.pinned, after(claim.wait), look).await
    }

    /// Ends a turn: everything in `ack` is committed, its messages are gone, the instance is free.
    ///
    /// # Errors
    /// `AlreadyExists` when one of the events is there already; nothing is committed then.
    pub async fn turn_ack(&self, token: &TurnToken, ack: TurnAck) -> Result<Acked> {
        if ack.events.iter().any(|event| event.id <= 0) {
            return Err(invalid("an event has no number: its writer must give it one"));
        }
        let hub = &self.shared().hub;
        let news = News::of(&ack, hub.clock.fixed_now());
        let (fixed, lists) = bind_ack(token, ack, self.clock().value());
        let acked = self.db().write(move |conn| {
            Box::pin(async move {
                let rows = conn.act(TURN_ACK, &fixed, &lists).await?;
                let mut row = rows[0].fields(TURN_ACK.name);
                Ok((row.int_or_null()?, row.bool()?, row.bool()?))
            })
        });
        let (born, already, more) = acked.await.map_err(|error| match error.kind() {
            Kind::AlreadyExists => {
                let message = format!("instance '{}' already has one of these events", token.instance);
                Error::new(Kind::AlreadyExists, message).with_source(error)
            }
            _ => error,
        })?;
        let Some(born) = born else { return Ok(if already { Acked::Already } else { Acked::Lost }) };
        news.tell(hub, more);
        Ok(Acked::Done(born))
    }

    /// Gives a turn back: its messages can be fetched again, at once or after `delay`, and this fetch counts or not.
    /// Whether the lease was still there.
    pub async fn turn_abandon(&self, token: &TurnToken, delay: Option<Duration>, uncount: bool) -> Result<bool> {
        self.shared().abandon_turn(token, delay, uncount).await
    }

    /// Ends a turn by dropping its messages.
    pub async fn turn_drop(&self, token: &TurnToken) -> Result<()> {
        let params = [token.instance.as_str().into(), Value::Int(token.token)];
        self.db().write(move |conn| Box::pin(async move { conn.query(TURN_DROP, &params).await.map(drop) })).await
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
    async fn look_for_turn(&self, claim: &TurnClaim, known: Vec<Known>) -> Result<Look<Turn>> {
        let token = new_token();
        let (least, most) = claim.pinned.unzip();
        let fixed =
            [self.hub.clock.value(), Value::Int(token), Value::Int(micros(claim.lease)), least.into(), most.into()];
        let list: List = vec![
            known.iter().map(|known| known.instance.clone()).collect(),
            known.iter().map(|known| known.born).collect(),
            known.iter().map(|known| known.execution).collect(),
            known.iter().map(|known| known.last).collect(),
        ];
        let act = self.hub.db.write(move |conn| {
            Box::pin(async move {
                let began = Instant::now();
                read_turn(token, &conn.act(TURN_FETCH, &fixed, &[list]).await?, began)
            })
        });
        act.await
    }

    async fn abandon_turn(&self, token: &TurnToken, delay: Option<Duration>, uncount: bool) -> Result<bool> {
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
        if done {
            self.hub.turn_in(delay.unwrap_or_default());
        }
        Ok(done)
    }

    /// A turn that nobody waits for any more goes back as if it had not been fetched.
    fn give_turn_back(self: &std::sync::Arc<Self>, turn: Turn) {
        let shared = self.clone();
        tokio::spawn(async move {
            if let Err(error) = shared.abandon_turn(&turn.token, None, true).await {
                tracing::debug!(%error, "a turn was not given back: its lease will run out");
            }
        });
    }
}

/// A token that nobody has: positive, because SQLite marks a turn that is being ended with its negative.
pub(crate) fn new_token() -> i64 {
    rand::rng().random_range(1..=i64::MAX)
}

fn read_turn(token: i64, rows: &[Row], began: Instant) -> Result<Look<Turn>> {
    let mut turn = None;
    let (mut messages, mut history, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let mut nothing = (None, true);
    decode(TURN_FETCH, rows, |row| {
        let part = row.int()?;
        let (id, n) = (row.int_or_null()?, row.int_or_null()?);
        match part {
            INSTANCE => {
                let instance = row.text()?;
                turn = Some((id.unwrap_or(0), n.unwrap_or(1), instance, row.text_or_null()?, row.text_or_null()?));
            }
            MESSAGE => messages.push(TurnMessage { id: id.unwrap_or(0), attempts: n.unwrap_or(0), item: row.text()? }),
            EVENT => history.push(HistoryEvent { id: id.unwrap_or(0), data: row.text()? }),
            VALUE => {
                let (key, value) = (row.text()?, row.text()?);
                values.push(KeptValue { key, value, updated_at: n.unwrap_or(0) });
            }
            _ => nothing = (id, n != Some(0)),
        }
        Ok(())
    })?;
    let Some((born, execution, instance, name, version)) = turn else {
        return Ok(nothing_yet(nothing));
    };
    messages.sort_unstable_by_key(|message| message.id);
    history.sort_unstable_by_key(|event| event.id);
    let token = TurnToken { instance, token };
    let took = began.elapsed();
    Ok(Look::Found(Turn { token, born, execution, name, version, messages, history, values, took }))
}

/// What a look that found nothing says about later.
pub(crate) fn nothing_yet<T>((next, blocked): (Option<i64>, bool)) -> Look<T> {
    Look::Nothing { next: next.map(|next| Duration::from_micros(next.max(0).unsigned_abs())), blocked }
}

fn bind_ack(token: &TurnToken, ack: TurnAck, clock: Value) -> (Vec<Value>, Vec<List>) {
    let (name, version) = ack.named.unzip();
    let terminal = matches!(ack.status.as_deref(), Some("Completed" | "Failed" | "ContinuedAsNew"));
    let cancelled: HashSet<_> = ack.cancelled.iter().collect();
    let is_wanted = |work: &NewWork| work.activity.as_ref().is_none_or(|activity| !cancelled.contains(activity));
    let work: Vec<_> = ack.work.into_iter().filter(is_wanted).collect();
    let (clear, values) = reduce(ack.values);
    let fixed = vec![
        clock,
        token.instance.as_str().into(),
        Value::Int(token.token),
        Value::Int(ack.execution),
        text(name),
        text(version),
        text(ack.parent),
        text(ack.status),
        text(ack.output),
        ack.pinned.into(),
        Value::Bool(ack.custom_status.is_some()),
        text(ack.custom_status.flatten()),
        Value::Bool(clear),
        Value::Bool(terminal),
        Value::Int(ack.events.len() as i64),
    ];
    let (ids, data): (Vec<_>, Vec<_>) = ack.events.into_iter().map(|event| (event.id, event.data)).unzip();
    let events = vec![ids.into_iter().collect(), data.into_iter().collect()];
    let cancelled = vec![
        ack.cancelled.iter().map(|activity| activity.instance.clone()).collect(),
        ack.cancelled.iter().map(|activity| activity.execution).collect(),
        ack.cancelled.iter().map(|activity| activity.id).collect(),
    ];
    (fixed, vec![events, work_columns(work), cancelled, message_columns(ack.messages), values])
}

fn text(value: Option<String>) -> Value {
    value.map_or(Value::Null, Value::Text)
}

fn work_columns(work: Vec<NewWork>) -> List {
    let of = |read: fn(&crate::types::Activity) -> i64| -> Column {
        work.iter().map(|work| work.activity.as_ref().map(read)).collect()
    };
    let (executions, ids) = (of(|activity| activity.execution), of(|activity| activity.id));
    let (mut instances, mut sessions, mut tags, mut items) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for work in work {
        instances.push(work.activity.map(|activity| activity.instance));
        sessions.push(work.session);
        tags.push(work.tag);
        items.push(Some(work.item));
    }
    vec![Column::Texts(instances), executions, ids, Column::Texts(sessions), Column::Texts(tags), Column::Texts(items)]
}

fn message_columns(messages: Vec<NewTurnMessage>) -> List {
    let times: Column = messages.iter().map(|message| message.visible_at).collect();
    let (instances, items): (Vec<_>, Vec<_>) =
        messages.into_iter().map(|message| (Some(message.instance), Some(message.item))).unzip();
    vec![Column::Texts(instances), times, Column::Texts(items)]
}

/// What a turn's changes come to: whether everything else is removed, and the last word on each key.
fn reduce(changes: Vec<ValueChange>) -> (bool, List) {
    let mut clear = false;
    let mut last: HashMap<String, (Option<String>, i64)> = HashMap::new();
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
    let (mut keys, mut values, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for (key, (value, at)) in last {
        keys.push(Some(key));
        values.push(value);
        times.push(at);
    }
    (clear, vec![Column::Texts(keys), Column::Texts(values), times.into_iter().collect()])
}

/// What an acknowledgement makes ready, for those who wait in this process and in others.
struct News {
    /// Messages that are visible at once, and the earliest of the others.
    now: usize,
    next: Option<Duration>,
    /// Tags of new activities without a session, and of those with one.
    tags: Vec<Option<String>>,
    sessions: Vec<Option<String>>,
}

impl News {
    fn of(ack: &TurnAck, fixed_now: Option<i64>) -> Self {
        let clock = fixed_now.unwrap_or_else(wall_clock);
        let later = |message: &NewTurnMessage| message.visible_at.filter(|at| *at > clock);
        let next = ack.messages.iter().filter_map(later).min();
        let (sessions, free): (Vec<_>, Vec<_>) = ack.work.iter().partition(|work| work.session.is_some());
        News {
            now: ack.messages.iter().filter(|message| later(message).is_none()).count(),
            next: next.map(|at| Duration::from_micros((at - clock).unsigned_abs())),
            tags: free.into_iter().map(|work| work.tag.clone()).collect(),
            sessions: sessions.into_iter().map(|work| work.tag.clone()).collect(),
        }
    }

    fn tell(self, hub: &crate::wake::Hub, more: bool) {
        for _ in 0..self.now.max(more.into()) {
            hub.turn_in(Duration::ZERO);
        }
        if let Some(next) = self.next {
            hub.turn_in(next);
        }
        for tag in self.tags {
            hub.work_ready(tag.as_deref(), false);
        }
        for tag in self.sessions {
            hub.work_ready(tag.as_deref(), true);
        }
    }
}

/// Only to guess when a timer is due: the database's clock decides.
fn wall_clock() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, micros)
}
