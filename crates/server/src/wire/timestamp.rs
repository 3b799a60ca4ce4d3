//! google.protobuf.Timestamp, and its JSON: RFC 3339 in UTC.
//!
//! Invariants: JSON outside the years 0001 to 9999 is refused, as protobuf's JSON demands. Protobuf carries any seconds
//! and any nanoseconds, and so does this type; they are brought into those years on the way to and from microseconds,
//! so what is stored and what comes out of the store can always be read. Printing takes every value and never panics: a
//! year beyond 9999 just has more digits.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use serde::ser::{Serialize, Serializer};

const DAY: i64 = 86_400;
const NANOS: i32 = 1_000_000_000;
/// 0001-01-01T00:00:00Z and 9999-12-31T23:59:59Z.
const FIRST: i64 = -62_135_596_800;
const LAST: i64 = 253_402_300_799;

/// A moment: seconds since 1970-01-01T00:00:00Z, and nanoseconds that count forward from there.
#[allow(unreachable_pub, reason = "as public as the generated messages that have it")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Timestamp {
    /// Whole seconds, negative before 1970.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// The rest, from 0 to 999,999,999.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl Timestamp {
    /// What Go takes for "no time".
    pub(crate) const YEAR_ONE: Timestamp = Timestamp { seconds: FIRST, nanos: 0 };

    /// The moment so many microseconds after 1970-01-01T00:00:00Z, or the nearest one that JSON can say.
    pub(crate) fn from_micros(micros: i64) -> Timestamp {
        let micros = in_calendar(micros);
        Timestamp { seconds: micros.div_euclid(1_000_000), nanos: micros.rem_euclid(1_000_000) as i32 * 1000 }
    }

    /// Microseconds since 1970-01-01T00:00:00Z, rounded down, of this moment or of the nearest one that JSON can say.
    #[allow(clippy::wrong_self_convention, reason = "most callers have a reference to a field")]
    pub(crate) fn to_micros(&self) -> i64 {
        let nanos = i64::from(self.nanos.div_euclid(1000));
        in_calendar(self.seconds.saturating_mul(1_000_000).saturating_add(nanos))
    }
}

fn in_calendar(micros: i64) -> i64 {
    micros.clamp(FIRST * 1_000_000, LAST * 1_000_000 + 999_999)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.seconds.saturating_add(i64::from(self.nanos.div_euclid(NANOS)));
        let (year, month, day) = date(seconds.div_euclid(DAY));
        let second = seconds.rem_euclid(DAY);
        write!(f, "{year:04}-{month:02}-{day:02}T")?;
        write!(f, "{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)?;
        match self.nanos.rem_euclid(NANOS) {
            0 => {}
            nanos if nanos % 1_000_000 == 0 => write!(f, ".{:03}", nanos / 1_000_000)?,
            nanos if nanos % 1000 == 0 => write!(f, ".{:06}", nanos / 1000)?,
            nanos => write!(f, ".{nanos:09}")?,
        }
        f.write_str("Z")
    }
}

/// Year, month and day of a day counted from 1970-01-01. Years begin in March here, so that a leap day is the last.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march = (5 * day + 2) / 153;
    let month = if march < 10 { march + 3 } else { march - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day - (153 * march + 2) / 5 + 1)
}

/// The opposite of `date`, which also answers for dates that do not exist.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    let day = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year * 365 + year / 4 - year / 100 + day - 719_468
}

/// Reads RFC 3339 as Go does: capital letters, at most nine digits of a second, no leap seconds.
fn parse(text: &str) -> Option<Timestamp> {
    let (clock, rest) = text.split_at_checked("0000-00-00T00:00:00".len())?;
    let [year, month, day, hour, minute, second] = numbers::<6>(clock, "0000-00-00T00:00:00")?;
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.find(|letter: char| !letter.is_ascii_digit())?),
        None => ("0", rest),
    };
    let missing_digits = 9_u32.checked_sub(fraction.len() as u32)?;
    let nanos = fraction.parse::<i32>().ok()? * 10_i32.pow(missing_digits);
    let offset = match zone.split_at_checked(1)? {
        ("Z", "") => 0,
        (sign @ ("+" | "-"), offset) => {
            let [hours, minutes] = numbers::<2>(offset, "00:00")?;
            let offset = in_range(hours, 0, 23)? * 3600 + in_range(minutes, 0, 59)? * 60;
            if sign == "-" { -offset } else { offset }
        }
        _ => return None,
    };
    let days = days(year, month, day);
    let second = in_range(hour, 0, 23)? * 3600 + in_range(minute, 0, 59)? * 60 + in_range(second, 0, 59)?;
    let seconds = in_range(days * DAY + second - offset, FIRST, LAST)?;
    (date(days) == (year, month, day)).then_some(Timestamp { seconds, nanos })
}

fn in_range(number: i64, first: i64, last: i64) -> Option<i64> {
    (first..=last).contains(&number).then_some(number)
}

/// The numbers in a text that has a digit where `shape` has a 0, and is the same elsewhere.
fn numbers<const COUNT: usize>(text: &str, shape: &str) -> Option<[i64; COUNT]> {
    if text.len() != shape.len() {
        return None;
    }
    let mut numbers = [0; COUNT];
    let mut at = 0;
    for (byte, shape) in text.bytes().zip(shape.bytes()) {
        match (byte, shape) {
            (b'0'..=b'9', b'0') => numbers[at] = numbers[at] * 10 + i64::from(byte - b'0'),
            _ if byte == shape => at += 1,
            _ => return None,
        }
    }
    Some(numbers)
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Rfc3339)
    }
}

struct Rfc3339;

impl Visitor<'_> for Rfc3339 {
    type Value = Timestamp;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time like 2026-01-31T12:00:00Z, of the years 0001 to 9999")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Timestamp, E> {
        parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every time that JSON can say.
    pub(in crate::wire) fn valid() -> impl Strategy<Value = Timestamp> {
        (FIRST..=LAST, prop_oneof![Just(0), 0..NANOS]).prop_map(|(seconds, nanos)| Timestamp { seconds, nanos })
    }

    fn at(seconds: i64, nanos: i32) -> Timestamp {
        Timestamp { seconds, nanos }
    }

    #[test]
    fn a_time_has_no_more_digits_than_it_needs_in_groups_of_three() {
        assert_eq!(Timestamp::YEAR_ONE.to_string(), "0001-01-01T00:00:00Z");
        assert_eq!(Timestamp::default().to_string(), "1970-01-01T00:00:00Z");
        assert_eq!(at(LAST, 999_999_999).to_string(), "9999-12-31T23:59:59.999999999Z");
        assert_eq!(at(951_782_400, 0).to_string(), "2000-02-29T00:00:00Z");
        assert_eq!(at(-1, 500_000_000).to_string(), "1969-12-31T23:59:59.500Z");
        assert_eq!(at(1_767_225_600, 120_000).to_string(), "2026-01-01T00:00:00.000120Z");
        assert_eq!(at(1_767_225_600, 1).to_string(), "2026-01-01T00:00:00.000000001Z");
    }

    #[test]
    fn a_time_is_read_with_any_offset_and_up_to_nine_digits() {
        assert_eq!(parse("0001-01-01T00:00:00Z"), Some(Timestamp::YEAR_ONE));
        assert_eq!(parse("2026-01-01T02:30:00.5+02:30"), Some(at(1_767_225_600, 500_000_000)));
        assert_eq!(parse("2025-12-31T23:00:00.000000001-01:00"), Some(at(1_767_225_600, 1)));
        assert_eq!(parse("2000-02-29T00:00:00Z"), Some(at(951_782_400, 0)));
    }

    #[test]
    fn what_is_no_time_of_the_years_1_to_9999_is_refused() {
        let texts = [
            "",
            "2026-01-01",
            "2026-01-01T00:00:00",
            "2026-01-01 00:00:00Z",
            "2026-01-01t00:00:00z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00.0000000001Z",
            "2026-01-01T00:00:00.5",
            "2026-01-01T00:00:00ZZ",
            "2026-01-01T00:00:00+0100",
            "2026-01-01T00:00:00+24:00",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:60:00Z",
            "2026-12-31T23:59:60Z",
            "2026-00-01T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-01-01T00:00:00é",
            "10000-01-01T00:00:00Z",
            "0000-12-31T23:59:59Z",
            "0001-01-01T00:00:00+00:01",
            "9999-12-31T23:59:59-00:01",
        ];
        for text in texts {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_time_that_json_cannot_say_is_stored_as_the_nearest_that_it_can() {
        assert_eq!(Timestamp::from_micros(at(i64::MIN, i32::MIN).to_micros()), Timestamp::YEAR_ONE);
        assert_eq!(Timestamp::from_micros(at(i64::MAX, i32::MAX).to_micros()), at(LAST, 999_999_000));
        assert_eq!(Timestamp::from_micros(i64::MAX), at(LAST, 999_999_000));
        assert_eq!(at(LAST + 1, 0).to_string(), "10000-01-01T00:00:00Z");
        assert_eq!(at(i64::MAX, 0).to_string(), "292277026596-12-04T15:30:07Z");
        assert_eq!(at(0, -1).to_string(), "1969-12-31T23:59:59.999999999Z");
    }

    #[test]
    fn microseconds_are_rounded_down() {
        assert_eq!(at(1, 1999).to_micros(), 1_000_001);
        assert_eq!(at(-1, 999_999_999).to_micros(), -1);
        assert_eq!(Timestamp::from_micros(-1), at(-1, 999_999_000));
    }

    proptest! {
        #[test]
        fn a_time_is_read_as_it_was_written(time in valid()) {
            prop_assert_eq!(parse(&time.to_string()), Some(time));
        }

        #[test]
        fn microseconds_come_back_as_they_were(micros in FIRST * 1_000_000..=LAST * 1_000_000) {
            prop_assert_eq!(Timestamp::from_micros(micros).to_micros(), micros);
        }

        #[test]
        fn every_value_can_be_printed_and_stored(seconds in any::<i64>(), nanos in any::<i32>()) {
            let time = at(seconds, nanos);
            prop_assert!(time.to_string().ends_with('Z'));
            prop_assert!(parse(&Timestamp::from_micros(time.to_micros()).to_string()).is_some());
        }

        #[test]
        fn any_text_is_read_or_refused(text in any::<String>(), like in "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.Z+]{0,30}") {
            let _ = (parse(&text), parse(&like));
        }
    }
}
