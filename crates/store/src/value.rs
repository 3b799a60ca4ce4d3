//! What travels through the waist: parameters, columns of parameters, and rows.

use bytes::Bytes;

use crate::error::{Error, Kind, Result};

/// One parameter, or one field of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Int(i64),
    Bool(bool),
    Text(String),
    Bytes(Bytes),
    /// A list that belongs to the whole batch; only PostgreSQL has such a thing.
    Ints(Vec<i64>),
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Value::Int(value)
    }
}
impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Bool(value)
    }
}
impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Value::Text(value.to_owned())
    }
}
impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

/// One parameter of every row of a batch.
#[derive(Clone, Debug)]
pub(crate) enum Column {
    Ints(Vec<Option<i64>>),
    Bools(Vec<bool>),
    Texts(Vec<Option<String>>),
    Bytes(Vec<Bytes>),
    /// So many nulls.
    Nulls(usize),
}

impl Column {
    /// Labels that most messages do not have: nothing is copied while there are none.
    pub(crate) fn labels<'a>(values: impl Iterator<Item = &'a Option<String>> + Clone) -> Self {
        if values.clone().all(Option::is_none) { Column::Nulls(values.count()) } else { values.cloned().collect() }
    }

    /// The same for numbers.
    pub(crate) fn numbers(values: impl Iterator<Item = Option<i64>> + Clone) -> Self {
        if values.clone().all(|value| value.is_none()) { Column::Nulls(values.count()) } else { values.collect() }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Column::Ints(values) => values.len(),
            Column::Bools(values) => values.len(),
            Column::Texts(values) => values.len(),
            Column::Bytes(values) => values.len(),
            Column::Nulls(len) => *len,
        }
    }

    /// Whether it holds nothing but nulls.
    pub(crate) fn is_null(&self) -> bool {
        match self {
            Column::Ints(values) => values.iter().all(Option::is_none),
            Column::Texts(values) => values.iter().all(Option::is_none),
            Column::Bools(_) | Column::Bytes(_) => false,
            Column::Nulls(_) => true,
        }
    }

    /// The last column of a batch, for statements that want it: by it answers find their questions.
    pub(crate) fn ordinals(len: usize) -> Self {
        Column::Ints((0..len as i64).map(Some).collect())
    }
}

impl FromIterator<i64> for Column {
    fn from_iter<I: IntoIterator<Item = i64>>(values: I) -> Self {
        Column::Ints(values.into_iter().map(Some).collect())
    }
}
impl FromIterator<Option<i64>> for Column {
    fn from_iter<I: IntoIterator<Item = Option<i64>>>(values: I) -> Self {
        Column::Ints(values.into_iter().collect())
    }
}
impl FromIterator<Option<String>> for Column {
    fn from_iter<I: IntoIterator<Item = Option<String>>>(values: I) -> Self {
        Column::Texts(values.into_iter().collect())
    }
}
impl FromIterator<String> for Column {
    fn from_iter<I: IntoIterator<Item = String>>(values: I) -> Self {
        Column::Texts(values.into_iter().map(Some).collect())
    }
}
impl FromIterator<bool> for Column {
    fn from_iter<I: IntoIterator<Item = bool>>(values: I) -> Self {
        Column::Bools(values.into_iter().collect())
    }
}
impl FromIterator<Bytes> for Column {
    fn from_iter<I: IntoIterator<Item = Bytes>>(values: I) -> Self {
        Column::Bytes(values.into_iter().collect())
    }
}

/// One row of an answer. PostgreSQL's rows are decoded in place; the embedded engines hand over values.
pub(crate) enum Row {
    Postgres(tokio_postgres::Row),
    #[cfg(any(feature = "sqlite", feature = "turso"))]
    Values(Vec<Value>),
}

/// Reads the fields of a row from left to right. A field that does not decode is an error that names the statement,
/// the column and the row's first field; it is never skipped and never replaced by a default.
pub(crate) struct Fields<'a> {
    row: &'a Row,
    statement: &'static str,
    next: usize,
}

impl Row {
    pub(crate) fn fields(&self, statement: &'static str) -> Fields<'_> {
        Fields { row: self, statement, next: 0 }
    }
}

macro_rules! fields {
    ($($required:ident, $optional:ident -> $type:ty, $pg:ident, $($variant:pat => $value:expr),+;)+) => {$(
        #[allow(dead_code, reason = "one pair of readers per type, used or not")]
        pub(crate) fn $required(&mut self) -> Result<$type> {
            let at = self.next;
            match self.$optional()? {
                Some(value) => Ok(value),
                None => Err(self.broken(at, "is null", None)),
            }
        }

        #[allow(dead_code, reason = "one pair of readers per type, used or not")]
        pub(crate) fn $optional(&mut self) -> Result<Option<$type>> {
            let at = self.next;
            self.next += 1;
            match self.row {
                Row::Postgres(row) => match row.try_get::<_, Option<$pg>>(at) {
                    Ok(value) => Ok(value.map(|value| value.0)),
                    Err(error) => Err(self.broken(at, "does not decode", Some(error))),
                },
                #[cfg(any(feature = "sqlite", feature = "turso"))]
                Row::Values(values) => match values.get(at) {
                    Some(Value::Null) => Ok(None),
                    $(Some($variant) => Ok(Some($value)),)+
                    _ => Err(self.broken(at, "does not decode", None)),
                },
            }
        }
    )+};
}

use crate::db::postgres::wire::{PgBool, PgBytes, PgInt, PgText};

impl Fields<'_> {
    fields! {
        int, int_or_null -> i64, PgInt, Value::Int(value) => *value;
        bool, bool_or_null -> bool, PgBool, Value::Int(value) => *value != 0, Value::Bool(value) => *value;
        text, text_or_null -> String, PgText, Value::Text(value) => value.clone();
        bytes, bytes_or_null -> Bytes, PgBytes, Value::Bytes(value) => value.clone();
    }

    fn broken(&self, at: usize, what: &str, source: Option<tokio_postgres::Error>) -> Error {
        let (name, first) = match self.row {
            Row::Postgres(row) => (
                row.columns().get(at).map_or_else(|| at.to_string(), |column| column.name().to_owned()),
                row.try_get::<_, PgInt>(0).ok().map(|id| id.0),
            ),
            #[cfg(any(feature = "sqlite", feature = "turso"))]
            Row::Values(values) => (
                at.to_string(),
                match values.first() {
                    Some(Value::Int(id)) => Some(*id),
                    _ => None,
                },
            ),
        };
        let row = first.map_or(String::new(), |id| format!(" of the row that begins with {id}"));
        let error =
            Error::new(Kind::Corrupt, format!("statement {}: column {name}{row} {what}; run `verify`", self.statement));
        match source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }
}
