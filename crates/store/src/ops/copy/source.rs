//! What a database of duroxide's own SQLite provider holds, in the shape that our statements take.
//!
//! Invariants: texts of users are written as we store them (see [`text`](crate::text)); locks are left behind; a table
//! or a column that is missing is an error, never a guess.

use std::path::Path;

use crate::db::foreign::{Foreign, Opened};
use crate::error::{Error, Kind, Result};
use crate::ops::copy::mark;
use crate::sql::{
    EXECUTION_IMPORT, HISTORY_IMPORT, INSTANCE_IMPORT, KV_IMPORT, SESSION_IMPORT, Statement, TURN_IMPORT, WORK_IMPORT,
};
use crate::text::stored;
use crate::types::CopyReport;
use crate::value::{Column, Fields, Value};

/// Instances that are looked up at a time.
const PAGE: i64 = 200;
/// Events in one transaction, if no instance has more by itself.
const EVENTS: u64 = 5_000;
/// Rows in one statement.
const PART: usize = 5_000;

/// A statement over duroxide's tables. They are not ours, so it is not in the table of `sql.rs`.
struct Text {
    name: &'static str,
    text: &'static str,
}

macro_rules! text {
    ($name:literal) => {
        Text {
            name: concat!("duroxide/", $name),
            text: include_str!(concat!("../../../sql/duroxide/", $name, ".sqlite.sql")),
        }
    };
}

static COLUMNS: Text = text!("columns");
static TOTALS: Text = text!("totals");
static PAGES: Text = text!("page");

/// What a column holds.
#[derive(Clone, Copy)]
enum Cell {
    Int,
    IntOrNull,
    Bool,
    /// A text of a user.
    Text,
    TextOrNull,
    /// A text in which no NUL can be.
    Json,
}

impl Cell {
    fn read(self, row: &mut Fields<'_>) -> Result<Value> {
        let text = |text: String| Value::Text(stored(&text).into_owned());
        Ok(match self {
            Cell::Int => Value::Int(row.int()?),
            Cell::IntOrNull => row.int_or_null()?.into(),
            Cell::Bool => Value::Bool(row.bool()?),
            Cell::Text => text(row.text()?),
            Cell::TextOrNull => row.text_or_null()?.map_or(Value::Null, text),
            Cell::Json => Value::Text(row.text()?),
        })
    }

    fn column(self, values: Vec<Value>) -> Column {
        let int = |value| if let Value::Int(value) = value { Some(value) } else { None };
        let text = |value| if let Value::Text(value) = value { Some(value) } else { None };
        match self {
            Cell::Int | Cell::IntOrNull => values.into_iter().map(int).collect(),
            Cell::Bool => values.into_iter().map(|value| value == Value::Bool(true)).collect(),
            Cell::Text | Cell::TextOrNull | Cell::Json => values.into_iter().map(text).collect(),
        }
    }
}

/// What is read with a statement of theirs and written with one of ours, column by column.
struct Table {
    from: Text,
    into: Statement,
    cells: &'static [Cell],
}

static INSTANCES: Table = Table {
    from: text!("instance"),
    into: INSTANCE_IMPORT,
    cells: &[
        Cell::Text,
        Cell::Int,
        Cell::TextOrNull,
        Cell::TextOrNull,
        Cell::TextOrNull,
        Cell::Int,
        Cell::IntOrNull,
        Cell::TextOrNull,
        Cell::Int,
        Cell::Int,
        Cell::Int,
    ],
};

static EXECUTIONS: Table = Table {
    from: text!("executions"),
    into: EXECUTION_IMPORT,
    cells: &[
        Cell::Text,
        Cell::Int,
        Cell::Text,
        Cell::TextOrNull,
        Cell::IntOrNull,
        Cell::Int,
        Cell::Int,
        Cell::IntOrNull,
    ],
};

static HISTORY: Table =
    Table { from: text!("history"), into: HISTORY_IMPORT, cells: &[Cell::Text, Cell::Int, Cell::Int, Cell::Json] };

static MESSAGES: Table =
    Table { from: text!("messages"), into: TURN_IMPORT, cells: &[Cell::Text, Cell::Int, Cell::Int, Cell::Json] };

static ACTIVITIES: Table = Table { from: text!("activities"), into: WORK_IMPORT, cells: ACTIVITY };
static STRAYS: Table = Table { from: text!("strays"), into: WORK_IMPORT, cells: ACTIVITY };

const ACTIVITY: &[Cell] = &[
    Cell::IntOrNull,
    Cell::TextOrNull,
    Cell::IntOrNull,
    Cell::IntOrNull,
    Cell::TextOrNull,
    Cell::TextOrNull,
    Cell::Int,
    Cell::Int,
    Cell::Json,
];

static VALUES: Table = Table {
    from: text!("values"),
    into: KV_IMPORT,
    cells: &[Cell::Text, Cell::Text, Cell::TextOrNull, Cell::Int, Cell::Bool, Cell::TextOrNull, Cell::Int],
};

static SESSIONS: Table =
    Table { from: text!("sessions"), into: SESSION_IMPORT, cells: &[Cell::Text, Cell::Text, Cell::Int, Cell::Int] };

/// The columns that are read. All of them are there since duroxide 0.1.32; older files lack some.
const SCHEMA: &[(&str, &[&str])] = &[
    ("history", &["instance_id", "execution_id", "event_id", "event_data", "created_at"]),
    (
        "instances",
        &[
            "instance_id",
            "orchestration_name",
            "orchestration_version",
            "current_execution_id",
            "custom_status",
            "custom_status_version",
            "created_at",
            "updated_at",
            "parent_instance_id",
        ],
    ),
    (
        "executions",
        &[
            "instance_id",
            "execution_id",
            "status",
            "output",
            "duroxide_version_major",
            "duroxide_version_minor",
            "duroxide_version_patch",
            "started_at",
            "completed_at",
        ],
    ),
    ("orchestrator_queue", &["id", "instance_id", "work_item", "visible_at", "attempt_count"]),
    (
        "worker_queue",
        &[
            "id",
            "work_item",
            "visible_at",
            "attempt_count",
            "instance_id",
            "execution_id",
            "activity_id",
            "session_id",
            "tag",
        ],
    ),
    ("sessions", &["session_id", "worker_id", "locked_until", "last_activity_at"]),
    ("kv_store", &["instance_id", "key", "value", "last_updated_at_ms"]),
    ("kv_delta", &["instance_id", "key", "value", "last_updated_at_ms"]),
];

/// Rows of a table.
pub(super) struct Rows {
    table: &'static Table,
    rows: Vec<Vec<Value>>,
}

impl Rows {
    fn new(table: &'static Table) -> Self {
        Rows { table, rows: Vec::new() }
    }

    fn read(&mut self, file: &Opened, params: &[Value]) -> Result<()> {
        for row in file.query(self.table.from.text, params)? {
            let mut fields = row.fields(self.table.from.name);
            let read = self.table.cells.iter().map(|cell| cell.read(&mut fields));
            self.rows.push(read.collect::<Result<_>>()?);
        }
        Ok(())
    }

    pub(super) fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    /// The statement that writes them.
    pub(super) fn statement(&self) -> Statement {
        self.table.into
    }

    /// The next rows for one statement, in columns.
    pub(super) fn next_part(&mut self) -> Option<Vec<Column>> {
        if self.rows.is_empty() {
            return None;
        }
        let rest = self.rows.split_off(self.rows.len().min(PART));
        let rows = std::mem::replace(&mut self.rows, rest);
        let mut cells: Vec<Vec<Value>> = self.table.cells.iter().map(|_| Vec::with_capacity(rows.len())).collect();
        for row in rows {
            for (cell, value) in cells.iter_mut().zip(row) {
                cell.push(value);
            }
        }
        Some(self.table.cells.iter().zip(cells).map(|(cell, values)| cell.column(values)).collect())
    }
}

/// Some instances with everything that belongs to them.
pub(super) struct Batch {
    pub(super) instances: Rows,
    pub(super) executions: Rows,
    pub(super) events: Rows,
    pub(super) messages: Rows,
    pub(super) activities: Rows,
    pub(super) values: Rows,
}

impl Batch {
    fn read(file: &Opened, ids: &[String]) -> Result<Self> {
        let mut batch = Batch {
            instances: Rows::new(&INSTANCES),
            executions: Rows::new(&EXECUTIONS),
            events: Rows::new(&HISTORY),
            messages: Rows::new(&MESSAGES),
            activities: Rows::new(&ACTIVITIES),
            values: Rows::new(&VALUES),
        };
        for id in ids {
            batch.instances.read(file, &[id.as_str().into(), Value::Int(mark(id))])?;
            let own = [
                &mut batch.executions,
                &mut batch.events,
                &mut batch.messages,
                &mut batch.activities,
                &mut batch.values,
            ];
            for rows in own {
                rows.read(file, &[id.as_str().into()])?;
            }
        }
        Ok(batch)
    }
}

/// An instance, and how many events it has.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) id: String,
    pub(super) events: u64,
}

/// Where an event is, and what it says: instance (as we store it), execution, number.
pub(super) type Event = ((String, i64, i64), String);

/// An open database of duroxide.
pub(super) struct Source {
    file: Foreign,
    /// Where the next page begins.
    from: String,
}

impl Source {
    pub(super) async fn open(path: &Path) -> Result<Self> {
        let file = Foreign::open(path).await?;
        file.read(check).await?;
        Ok(Source { file, from: String::new() })
    }

    /// How much of everything there is.
    pub(super) async fn totals(&self) -> Result<CopyReport> {
        let read = |file: &Opened| {
            let rows = file.query(TOTALS.text, &[])?;
            let row = rows.first().ok_or_else(|| Error::new(Kind::Corrupt, "the file does not count its rows"))?;
            totals(&mut row.fields(TOTALS.name))
        };
        self.file.read(read).await
    }

    /// The next instances in the order of their ids, in batches for one transaction each; none after the last.
    pub(super) async fn next_page(&mut self) -> Result<Vec<Vec<Listed>>> {
        let from = Value::Text(self.from.clone());
        let read = move |file: &Opened| {
            let rows = file.query(PAGES.text, &[from, Value::Int(PAGE)])?;
            let read = rows.iter().map(|row| {
                let mut row = row.fields(PAGES.name);
                Ok(Listed { id: row.text()?, events: row.int()?.unsigned_abs() })
            });
            read.collect::<Result<Vec<Listed>>>()
        };
        let listed = self.file.read(read).await?;
        if let Some(last) = listed.last() {
            // The least text that is greater; an empty id is a possible one, so "greater than" has nowhere to begin.
            self.from = format!("{}\0", last.id);
        }
        Ok(batches(listed))
    }

    /// These instances with everything that belongs to them.
    pub(super) async fn batch(&self, ids: Vec<String>) -> Result<Batch> {
        self.file.read(move |file| Batch::read(file, &ids)).await
    }

    /// All events of these instances.
    pub(super) async fn events(&self, ids: Vec<String>) -> Result<Vec<Event>> {
        let read = move |file: &Opened| {
            let mut events = Vec::new();
            for id in &ids {
                for row in file.query(HISTORY.from.text, &[id.as_str().into()])? {
                    events.push(event(&mut row.fields(HISTORY.from.name), |id| stored(&id).into_owned())?);
                }
            }
            Ok(events)
        };
        self.file.read(read).await
    }

    /// What belongs to no instance: activities, and the sessions.
    pub(super) async fn rest(&self) -> Result<(Rows, Rows)> {
        let read = |file: &Opened| {
            let (mut strays, mut sessions) = (Rows::new(&STRAYS), Rows::new(&SESSIONS));
            strays.read(file, &[])?;
            sessions.read(file, &[])?;
            for row in &mut strays.rows {
                if let [Value::Int(id), .., Value::Text(item)] = row.as_mut_slice() {
                    *id = mark(&format!("{id}:{item}"));
                }
            }
            Ok((strays, sessions))
        };
        self.file.read(read).await
    }
}

/// Counts of all tables, in the order of both sides' statements.
pub(super) fn totals(row: &mut Fields<'_>) -> Result<CopyReport> {
    Ok(CopyReport {
        instances: row.int()?.unsigned_abs(),
        executions: row.int()?.unsigned_abs(),
        events: row.int()?.unsigned_abs(),
        messages: row.int()?.unsigned_abs(),
        activities: row.int()?.unsigned_abs(),
        values: row.int()?.unsigned_abs(),
        sessions: row.int()?.unsigned_abs(),
        skipped: 0,
    })
}

/// An event of either side.
pub(super) fn event(row: &mut Fields<'_>, id: impl Fn(String) -> String) -> Result<Event> {
    Ok(((id(row.text()?), row.int()?, row.int()?), row.text()?))
}

/// Refuses a file that is not duroxide's, or that an older version made.
fn check(file: &Opened) -> Result<()> {
    let shown = file.path().display();
    for (table, columns) in SCHEMA {
        let rows = file.query(COLUMNS.text, &[(*table).into()])?;
        let known = rows.iter().map(|row| row.fields(COLUMNS.name).text()).collect::<Result<Vec<_>>>()?;
        if *table == "history" && known.is_empty() {
            let message = format!("this file is not a duroxide database: {shown} has no table 'history'");
            return Err(Error::new(Kind::Schema, message));
        }
        if let Some(missing) = columns.iter().find(|column| known.iter().all(|known| known != *column)) {
            let message = format!(
                "{shown} has no column '{missing}' in a table '{table}', so an older duroxide made it: start a program \
                 with duroxide 0.1.32 on it once, which brings it up to date"
            );
            return Err(Error::new(Kind::Schema, message));
        }
    }
    Ok(())
}

fn batches(listed: Vec<Listed>) -> Vec<Vec<Listed>> {
    let mut batches: Vec<Vec<Listed>> = Vec::new();
    let mut events = 0;
    for one in listed {
        match batches.last_mut().filter(|_| events + one.events <= EVENTS) {
            Some(batch) => {
                events += one.events;
                batch.push(one);
            }
            None => {
                events = one.events;
                batches.push(vec![one]);
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_ends_before_it_has_too_many_events_and_is_never_empty() {
        let sizes = [EVENTS + 1, 1, EVENTS - 1, 1, 0];
        let listed = sizes.iter().map(|events| Listed { id: events.to_string(), events: *events }).collect();
        let counts: Vec<usize> = batches(listed).iter().map(Vec::len).collect();
        assert_eq!(counts, [1, 2, 2]);
        assert!(batches(Vec::new()).is_empty());
    }
}
