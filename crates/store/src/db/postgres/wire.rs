//! Values and columns in PostgreSQL's binary form: what is bound is written straight into the message, and rows are
//! decoded in place.

use std::error::Error as StdError;

use bytes::{BufMut, Bytes, BytesMut};
use postgres_protocol::types as wire;
use tokio_postgres::types::{FromSql, IsNull, Kind as TypeKind, ToSql, Type};

use crate::value::{Column, Value};

impl Value {
    pub(super) fn pg_type(&self) -> Type {
        match self {
            Value::Null => Type::UNKNOWN,
            Value::Int(_) => Type::INT8,
            Value::Bool(_) => Type::BOOL,
            Value::Text(_) => Type::TEXT,
            Value::Bytes(_) => Type::BYTEA,
            Value::Ints(_) => Type::INT8_ARRAY,
        }
    }
}

impl Column {
    pub(super) fn pg_type(&self) -> Type {
        match self {
            Column::Ints(_) => Type::INT8_ARRAY,
            Column::Bools(_) => Type::BOOL_ARRAY,
            Column::Texts(_) => Type::TEXT_ARRAY,
            Column::Bytes(_) => Type::BYTEA_ARRAY,
            Column::Nulls(_) => Type::UNKNOWN,
        }
    }
}

type Encoded = std::result::Result<IsNull, Box<dyn StdError + Sync + Send>>;

/// An integer in whichever width the server asked for.
fn int_to_sql(value: i64, ty: &Type, out: &mut BytesMut) -> std::result::Result<(), Box<dyn StdError + Sync + Send>> {
    match *ty {
        Type::INT4 => wire::int4_to_sql(i32::try_from(value)?, out),
        Type::INT2 => wire::int2_to_sql(i16::try_from(value)?, out),
        _ => wire::int8_to_sql(value, out),
    }
    Ok(())
}

impl ToSql for Value {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Encoded {
        match self {
            Value::Null => return Ok(IsNull::Yes),
            Value::Int(value) => int_to_sql(*value, ty, out)?,
            Value::Bool(value) => wire::bool_to_sql(*value, out),
            Value::Text(value) => wire::text_to_sql(value, out),
            Value::Bytes(value) => wire::bytea_to_sql(value, out),
            Value::Ints(values) => return values.to_sql(ty, out),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    tokio_postgres::types::to_sql_checked!();
}

impl ToSql for Column {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Encoded {
        // A column of nulls is not sent: `unnest` fills it up again, and the server need not unpack what is not there
        // (eight such columns cost a third in bulk).
        if self.is_null() {
            return Ok(IsNull::Yes);
        }
        let TypeKind::Array(member) = ty.kind() else {
            return Err(format!("a column of a batch needs an array, not {ty}").into());
        };
        // The wire form of an array, written straight from the column.
        out.put_i32(1);
        let has_nulls = match self {
            Column::Ints(values) => values.iter().any(Option::is_none),
            Column::Texts(values) => values.iter().any(Option::is_none),
            Column::Bools(_) | Column::Bytes(_) | Column::Nulls(_) => false,
        };
        out.put_i32(has_nulls.into());
        out.put_u32(member.oid());
        out.put_i32(i32::try_from(self.len())?);
        out.put_i32(1);
        match self {
            Column::Nulls(_) => {}
            Column::Ints(values) => {
                let width = if *member == Type::INT4 { 4 } else { 8 };
                for value in values {
                    match value {
                        None => out.put_i32(-1),
                        Some(value) => {
                            out.put_i32(width);
                            int_to_sql(*value, member, out)?;
                        }
                    }
                }
            }
            Column::Bools(values) => {
                for value in values {
                    out.put_i32(1);
                    out.put_u8((*value).into());
                }
            }
            Column::Texts(values) => {
                for value in values {
                    match value {
                        None => out.put_i32(-1),
                        Some(value) => {
                            out.put_i32(i32::try_from(value.len())?);
                            out.put_slice(value.as_bytes());
                        }
                    }
                }
            }
            Column::Bytes(values) => {
                for value in values {
                    out.put_i32(i32::try_from(value.len())?);
                    out.put_slice(value);
                }
            }
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    tokio_postgres::types::to_sql_checked!();
}

macro_rules! from_sql {
    ($($name:ident($type:ty): $accepts:pat, $ty:ident, $raw:ident => $read:expr;)+) => {$(
        /// Reads one kind of field; rows are decoded in place.
        pub(crate) struct $name(pub(crate) $type);
        impl<'a> FromSql<'a> for $name {
            fn from_sql($ty: &Type, $raw: &'a [u8]) -> std::result::Result<Self, Box<dyn StdError + Sync + Send>> {
                Ok($name($read))
            }
            fn accepts($ty: &Type) -> bool {
                matches!(*$ty, $accepts)
            }
        }
    )+};
}

from_sql! {
    PgInt(i64): Type::INT8 | Type::INT4 | Type::INT2, ty, raw => match *ty {
        Type::INT4 => wire::int4_from_sql(raw)?.into(),
        Type::INT2 => wire::int2_from_sql(raw)?.into(),
        _ => wire::int8_from_sql(raw)?,
    };
    PgBool(bool): Type::BOOL, _ty, raw => wire::bool_from_sql(raw)?;
    PgText(String): Type::TEXT | Type::VARCHAR | Type::NAME, _ty, raw => wire::text_from_sql(raw)?.to_owned();
    PgBytes(Bytes): Type::BYTEA, _ty, raw => Bytes::copy_from_slice(raw);
}
