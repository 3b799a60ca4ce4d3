//! Enqueueing: many messages of many lanes in one statement, or with dedupe keys and due times in one transaction.

use std::collections::{HashMap, HashSet, hash_map};
use std::time::Duration;

use crate::clock::{Clock, micros};
use crate::db::{Conn, decode};
use crate::error::{Error, Kind, Result};
use crate::ops::queue::check_duration;
use crate::ops::{check_label, check_text, count_up, reserve_one, stored};
use crate::sql::{
    DEDUPE_FIND, DEDUPE_HOLD, DEDUPE_SET, Dialect, LANE_GET, MESSAGE_ENQUEUE, MESSAGE_ENQUEUE_LANES,
    MESSAGE_ENQUEUE_LEASED, MESSAGE_ENQUEUE_ONE, MESSAGE_FIND, MESSAGE_SCHEDULE, Statement,
};
use crate::types::{Due, Enqueued, Message, NewMessage};
use crate::value::{Column, Fields, Value};

/// A message on its way into a lane.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) queue: i64,
    pub(crate) lane: i64,
    pub(crate) message: NewMessage,
}

impl Entry {
    /// What it weighs in a combiner.
    pub(crate) fn bytes(&self) -> usize {
        self.message.payload.len() + 64
    }

    /// Whether it can go into the one statement of the hot path.
    pub(crate) fn is_plain(&self) -> bool {
        self.message.dedupe.is_none() && self.message.due.is_none()
    }
}

pub(crate) fn check(message: &NewMessage) -> Result<()> {
    for (what, text) in [("the key", &message.key), ("the dedupe key", &message.dedupe)] {
        text.as_deref().map_or(Ok(()), |text| check_text(what, text, 1024))?;
    }
    check_label("the kind", message.kind.as_deref())?;
    check_label("the encoding", message.encoding.as_deref())?;
    check_label("the reference", message.reference.as_deref())?;
    message.expire.map_or(Ok(()), |expire| check_duration("the expiry", expire))?;
    match message.due {
        Some(Due::In(delay)) if !delay.is_zero() => check_duration("the delay", delay)?,
        _ => {}
    }
    match message.max_attempts {
        Some(0) => Err(crate::error::invalid("max_attempts is 0: leave it out, or give at least 1")),
        Some(limit) if limit > i32::MAX as u32 => Err(crate::error::invalid("max_attempts is too large")),
        _ => Ok(()),
    }
}

/// Stores all entries, or none. Needs a transaction unless every entry is plain.
pub(crate) async fn enqueue(conn: &mut Conn<'_>, clock: &Clock, entries: &[Entry]) -> Result<Vec<Enqueued>> {
    if entries.iter().all(Entry::is_plain) {
        return insert(conn, clock, MESSAGE_ENQUEUE, &entries.iter().collect::<Vec<_>>()).await;
    }
    let held = hold(conn, clock, entries).await?;
    let fresh = |n: &usize| held[*n].is_none();
    let (now, later): (Vec<usize>, Vec<usize>) =
        (0..entries.len()).filter(fresh).partition(|n| entries[*n].message.due.is_none());
    let mut answers = held;
    for (statement, group) in [(MESSAGE_ENQUEUE, now), (MESSAGE_SCHEDULE, later)] {
        let members: Vec<&Entry> = group.iter().map(|n| &entries[*n]).collect();
        for (n, answer) in group.into_iter().zip(insert(conn, clock, statement, &members).await?) {
            answers[n] = Some(answer);
        }
    }
    remember(conn, entries, &answers).await?;
    let mut answers = resolve_twins(entries, answers)?;
    find_stored(conn, &mut answers).await?;
    Ok(answers)
}

async fn insert(conn: &mut Conn<'_>, clock: &Clock, statement: Statement, entries: &[&Entry]) -> Result<Vec<Enqueued>> {
    let scheduled = statement.index == MESSAGE_SCHEDULE.index;
    match (conn.dialect(), entries) {
        (_, []) => Ok(Vec::new()),
        (Dialect::Postgres, [entry]) if !scheduled => insert_one(conn, clock, entry).await,
        (Dialect::Postgres, _) => insert_returning(conn, clock, statement, entries).await,
        (Dialect::Sqlite, _) => insert_computed(conn, clock, statement, entries).await,
    }
}

/// The columns that both dialects share, behind id, lane and expiry.
fn labels(entries: &[&Entry], scheduled: bool) -> Vec<Column> {
    let messages = || entries.iter().map(|entry| &entry.message);
    let mut columns = vec![
        Column::numbers(messages().map(|message| message.max_attempts.map(i64::from))),
        Column::labels(messages().map(|message| &message.key)),
        Column::labels(messages().map(|message| &message.kind)),
        Column::labels(messages().map(|message| &message.encoding)),
        Column::labels(messages().map(|message| &message.reference)),
        Column::numbers(messages().map(|message| message.producer)),
        messages().map(|message| message.payload.clone()).collect(),
    ];
    if scheduled {
        let at = |message: &NewMessage| if let Some(Due::At(at)) = message.due { Some(at) } else { None };
        let delay = |message: &NewMessage| match message.due {
            Some(Due::In(delay)) => Some(micros(delay)),
            _ => None,
        };
        columns.push(messages().map(at).collect());
        columns.push(messages().map(delay).collect());
    }
    columns
}

/// PostgreSQL: the statement draws ids and reads the clock and the lanes, and returns what it stored.
async fn insert_returning(
    conn: &mut Conn<'_>,
    clock: &Clock,
    statement: Statement,
    entries: &[&Entry],
) -> Result<Vec<Enqueued>> {
    let scheduled = statement.index == MESSAGE_SCHEDULE.index;
    let (lanes, places) = lanes(entries);
    let ids = Column::Nulls(entries.len());
    let expiries = Column::numbers(entries.iter().map(|entry| entry.message.expire.map(micros)));
    let (statement, lanes, mut columns) = match lanes.as_slice() {
        [lane] if !scheduled => (statement, Value::Int(*lane), vec![ids, expiries]),
        _ if scheduled => (statement, Value::Ints(lanes), vec![ids, places, expiries]),
        _ => (MESSAGE_ENQUEUE_LANES, Value::Ints(lanes), vec![ids, places, expiries]),
    };
    columns.extend(labels(entries, scheduled));
    let rows = conn.each(statement, &[clock.value(), lanes], &columns).await.map_err(|error| match error.kind() {
        Kind::NotFound => gone().with_source(error),
        _ => error,
    })?;
    decode(statement, &rows, |row| enqueued(row, scheduled))
}

/// SQLite: ids, time and lanes are looked up once for the batch, so that the rows are plain values.
async fn insert_computed(
    conn: &mut Conn<'_>,
    clock: &Clock,
    statement: Statement,
    entries: &[&Entry],
) -> Result<Vec<Enqueued>> {
    let scheduled = statement.index == MESSAGE_SCHEDULE.index;
    let (first, now) = count_up(conn, clock.value(), entries.len()).await?;
    let mut expiries: HashMap<i64, Option<i64>> = HashMap::new();
    let mut answers = Vec::with_capacity(entries.len());
    for (n, entry) in entries.iter().enumerate() {
        let of_lane = match expiries.entry(entry.lane) {
            hash_map::Entry::Occupied(known) => *known.get(),
            hash_map::Entry::Vacant(new) => {
                let row = conn.query_opt(LANE_GET, &[Value::Int(entry.lane)]).await?.ok_or_else(gone)?;
                *new.insert(row.fields(LANE_GET.name).int_or_null()?)
            }
        };
        let due_at = match entry.message.due {
            Some(Due::At(at)) => Some(at),
            Some(Due::In(delay)) => Some(now.saturating_add(micros(delay))),
            None => None,
        };
        let expire = entry.message.expire.map(micros).or(of_lane);
        let expire_at = expire.map(|expire| due_at.unwrap_or(now).saturating_add(expire));
        let (id, created_at) = (first + n as i64, now);
        answers.push(Enqueued { id, created_at, due_at, expire_at, duplicate: false, stored: None });
    }
    let mut columns = vec![
        answers.iter().map(|answer| answer.id).collect(),
        entries.iter().map(|entry| entry.lane).collect(),
        Column::numbers(answers.iter().map(|answer| answer.expire_at)),
    ];
    columns.extend(labels(entries, scheduled));
    conn.each(statement, &[Value::Int(now), Value::Null], &columns).await?;
    Ok(answers)
}

/// The lone caller's way: one row, no arrays.
async fn insert_one(conn: &mut Conn<'_>, clock: &Clock, entry: &Entry) -> Result<Vec<Enqueued>> {
    let NewMessage { payload, key, expire, max_attempts, kind, encoding, reference, producer, .. } = &entry.message;
    let params = [
        clock.value(),
        Value::Int(entry.lane),
        expire.map(micros).into(),
        max_attempts.map(i64::from).into(),
        key.as_deref().into(),
        kind.as_deref().into(),
        encoding.as_deref().into(),
        reference.as_deref().into(),
        (*producer).into(),
        Value::Bytes(payload.clone()),
    ];
    let row = conn.query_opt(MESSAGE_ENQUEUE_ONE, &params).await?.ok_or_else(gone)?;
    Ok(vec![enqueued(&mut row.fields(MESSAGE_ENQUEUE_ONE.name), false)?])
}

/// Stores one message without a key, leased to a claim that waits for it; no message: something else comes first, and
/// this one is ready.
pub(crate) async fn enqueue_leased(
    conn: &mut Conn<'_>,
    clock: &Clock,
    entry: &Entry,
    from: i64,
    lease: Option<Duration>,
    worker: Option<i64>,
) -> Result<(Enqueued, Option<Message>)> {
    let NewMessage { payload, expire, max_attempts, kind, encoding, reference, producer, .. } = &entry.message;
    let id = reserve_one(conn).await?;
    let params = [
        clock.value(),
        Value::Int(entry.lane),
        Value::Int(from),
        lease.map(micros).into(),
        id,
        worker.into(),
        expire.map(micros).into(),
        max_attempts.map(i64::from).into(),
        kind.as_deref().into(),
        encoding.as_deref().into(),
        reference.as_deref().into(),
        (*producer).into(),
        Value::Bytes(payload.clone()),
    ];
    let asked = Some(std::time::Instant::now());
    let row = conn.query_opt(MESSAGE_ENQUEUE_LEASED, &params).await?.ok_or_else(gone)?;
    let mut row = row.fields(MESSAGE_ENQUEUE_LEASED.name);
    let enqueued = enqueued(&mut row, false)?;
    let (leased_until, keep) = (row.int()?, row.bool()?);
    let message = (leased_until > 0).then(|| Message {
        id: enqueued.id,
        origin_id: None,
        lane: entry.lane,
        attempts: 1,
        max_attempts: max_attempts.map(i64::from),
        leased_until,
        worker,
        leased_at: Some(enqueued.created_at),
        created_at: enqueued.created_at,
        expire_at: enqueued.expire_at,
        due_at: None,
        buried_id: None,
        buried_from: None,
        reason: None,
        source_id: None,
        key: None,
        kind: kind.clone(),
        encoding: encoding.clone(),
        reference: reference.clone(),
        producer: *producer,
        payload: payload.clone(),
        keep,
        token: None,
        asked,
    });
    Ok((enqueued, message))
}

fn enqueued(row: &mut Fields<'_>, scheduled: bool) -> Result<Enqueued> {
    let (id, created_at, expire_at) = (row.int()?, row.int()?, row.int_or_null()?);
    let due_at = if scheduled { Some(row.int()?) } else { None };
    Ok(Enqueued { id, created_at, due_at, expire_at, duplicate: false, stored: None })
}

fn gone() -> Error {
    Error::new(Kind::NotFound, "the queue was deleted: create it again, or stop enqueueing into it")
}

/// The lanes of a batch: a list for all, and for each row a place in it.
fn lanes(entries: &[&Entry]) -> (Vec<i64>, Column) {
    let mut list = Vec::new();
    let mut place = |lane: i64| match list.iter().rposition(|known| *known == lane) {
        Some(place) => place,
        None => {
            list.push(lane);
            list.len() - 1
        }
    };
    // The first lane's place goes without saying, so that a batch of one lane sends no places at all.
    let places = entries.iter().map(|entry| Some(place(entry.lane) as i64 + 1).filter(|place| *place > 1)).collect();
    (list, places)
}

/// Takes the dedupe keys of a batch. An entry whose key was taken before gets its answer here; one whose twin stands
/// earlier in the same batch gets a placeholder that [`resolve_twins`] fills in.
async fn hold(conn: &mut Conn<'_>, clock: &Clock, entries: &[Entry]) -> Result<Vec<Option<Enqueued>>> {
    const TWIN: Enqueued =
        Enqueued { id: 0, created_at: 0, due_at: None, expire_at: None, duplicate: true, stored: None };
    let mut answers = vec![None; entries.len()];
    let mut seen = HashSet::new();
    for (entry, answer) in entries.iter().zip(&mut answers) {
        if let Some(key) = &entry.message.dedupe
            && !seen.insert((entry.queue, key))
        {
            *answer = Some(TWIN);
        }
    }
    let wanted: Vec<usize> =
        (0..entries.len()).filter(|n| entries[*n].message.dedupe.is_some() && answers[*n].is_none()).collect();
    let keys = |members: &[usize]| -> [Column; 2] {
        [
            members.iter().map(|n| entries[*n].queue).collect(),
            members.iter().map(|n| entries[*n].message.dedupe.clone()).collect(),
        ]
    };
    let rows = conn.each(DEDUPE_HOLD, &[clock.value()], &keys(&wanted)).await?;
    let won = decode(DEDUPE_HOLD, &rows, |row| Ok((row.int()?, row.text()?)))?;
    let won: HashSet<_> = won.iter().map(|(queue, key)| (*queue, key.as_str())).collect();
    let lost: Vec<usize> = wanted
        .into_iter()
        .filter(|n| !won.contains(&(entries[*n].queue, entries[*n].message.dedupe.as_deref().unwrap_or_default())))
        .collect();
    for row in conn.each(DEDUPE_FIND, &[], &keys(&lost)).await? {
        let mut row = row.fields(DEDUPE_FIND.name);
        let n = row.int()? as usize;
        answers[lost[n]] = Some(Enqueued { id: row.int()?, created_at: row.int()?, ..TWIN });
    }
    Ok(answers)
}

/// Writes down which message each taken key stands for.
async fn remember(conn: &mut Conn<'_>, entries: &[Entry], answers: &[Option<Enqueued>]) -> Result<()> {
    let taken: Vec<(&Entry, i64)> = entries
        .iter()
        .zip(answers)
        .filter_map(|(entry, answer)| answer.as_ref().filter(|a| !a.duplicate).map(|a| (entry, a.id)))
        .filter(|(entry, _)| entry.message.dedupe.is_some())
        .collect();
    let columns = [
        taken.iter().map(|(entry, _)| entry.queue).collect(),
        taken.iter().map(|(entry, _)| entry.message.dedupe.clone()).collect(),
        taken.iter().map(|(_, id)| *id).collect::<Column>(),
    ];
    conn.each(DEDUPE_SET, &[], &columns).await?;
    Ok(())
}

fn resolve_twins(entries: &[Entry], answers: Vec<Option<Enqueued>>) -> Result<Vec<Enqueued>> {
    let mut firsts: HashMap<(i64, &str), (i64, i64)> = HashMap::new();
    entries
        .iter()
        .zip(answers)
        .map(|(entry, answer)| {
            let mut answer = answer
                .ok_or_else(|| Error::new(Kind::Corrupt, "a dedupe key is taken, but nobody knows by which message"))?;
            if let Some(key) = &entry.message.dedupe {
                let first = firsts.entry((entry.queue, key)).or_insert((answer.id, answer.created_at));
                (answer.id, answer.created_at) = *first;
            }
            Ok(answer)
        })
        .collect()
}

/// Adds to duplicates the messages that have their dedupe keys. Only a batch with duplicates pays for this.
async fn find_stored(conn: &mut Conn<'_>, answers: &mut [Enqueued]) -> Result<()> {
    let duplicates: Vec<usize> = (0..answers.len()).filter(|n| answers[*n].duplicate).collect();
    let ids: Column = duplicates.iter().map(|n| answers[*n].id).collect();
    for row in conn.each(MESSAGE_FIND, &[], &[ids]).await? {
        let mut row = row.fields(MESSAGE_FIND.name);
        let answer = &mut answers[duplicates[row.int()? as usize]];
        let message = stored(&mut row)?;
        (answer.created_at, answer.due_at, answer.expire_at) = (message.created_at, message.due_at, message.expire_at);
        answer.stored = Some(Box::new(message));
    }
    Ok(())
}

/// Which lane a keyed message belongs to: always the same one, in every process and in every version.
pub(crate) fn lane_of_key(lanes: &[i64], key: &str) -> i64 {
    // FNV-1a: stable by definition, unlike the standard library's hasher.
    let hash = key
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    lanes[(hash % lanes.len() as u64) as usize]
}
