//! How the protocol writes bytes, times and ids in JSON.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use chrono::{DateTime, SecondsFormat};
use serde_json::Value;

pub(crate) const SECOND: i64 = 1_000_000_000;
pub(crate) const MILLISECOND: i64 = 1_000_000;
/// The time of an item that is not leased.
pub(crate) const NO_TIME: &str = "0001-01-01T00:00:00Z";

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The real time, in nanoseconds since 1970.
pub(crate) fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

/// A time as the server writes it.
pub(crate) fn time(nanos: i64) -> String {
    DateTime::from_timestamp_nanos(nanos).to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

/// A time that the server wrote, in nanoseconds since 1970.
pub(crate) fn nanos(time: &Value) -> i64 {
    let time = time.as_str().unwrap_or_else(|| panic!("{time} is not a time"));
    assert!(time.ends_with('Z'), "{time} is not in UTC");
    DateTime::parse_from_rfc3339(time).unwrap().timestamp_nanos_opt().unwrap()
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

pub(crate) fn from_base64(text: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(text).unwrap()
}

/// The payload of an item, leased or listed.
pub(crate) fn payload(item: &Value) -> String {
    let field = item.get("bytes").or_else(|| item.get("payload"));
    String::from_utf8(from_base64(field.and_then(Value::as_str).unwrap_or_default())).unwrap()
}

/// A text field; empty when it is left out.
pub(crate) fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_default().to_owned()
}

/// A number; zero when it is left out.
pub(crate) fn number(value: &Value, field: &str) -> i64 {
    value[field].as_i64().unwrap_or_default()
}

/// The id just before this one, as clients with a KSUID library compute it.
pub(crate) fn predecessor(id: &str) -> String {
    let mut digits: Vec<usize> =
        id.bytes().map(|byte| BASE62.iter().position(|digit| *digit == byte).unwrap()).collect();
    for digit in digits.iter_mut().rev() {
        if *digit > 0 {
            *digit -= 1;
            break;
        }
        *digit = 61;
    }
    digits.into_iter().map(|digit| char::from(BASE62[digit])).collect()
}

#[test]
fn a_predecessor_borrows_from_the_left() {
    assert_eq!(predecessor("0A00"), "09zz");
    assert_eq!(predecessor("00aB"), "00aA");
}
