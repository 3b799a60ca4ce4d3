//! Times and durations as people write and read them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;

use crate::wire::Timestamp;
use crate::wire::go::{format_duration, parse_duration};

/// When something becomes ready: at a time, after a while, or at once.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct When {
    /// Not before this time, such as 2030-01-31T12:00:00Z.
    #[arg(long, value_name = "RFC3339", value_parser = instant)]
    at: Option<i64>,
    /// Not before this much time has passed, such as 30s, 10m, 24h or 7d.
    #[arg(long = "in", value_name = "DURATION", value_parser = duration)]
    after: Option<Duration>,
}

impl When {
    /// The time that is meant, reckoned from now; none: at once.
    pub(super) fn instant(&self) -> Option<Timestamp> {
        let after = self.after.map(|after| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + after;
            i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
        });
        self.at.or(after).map(Timestamp::from_micros)
    }
}

/// A duration such as 30s, 1h30m or 7d: what the protocol understands, and weeks and days before it.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "write it like 30s, 10m, 24h or 7d".to_owned();
    let whole = text.trim();
    let mut rest = whole;
    let mut days = 0;
    for (unit, length) in [('w', 7), ('d', 1)] {
        if let Some((count, tail)) = rest.split_once(unit) {
            days += u64::from(count.parse::<u32>().map_err(|_| wrong())?) * length;
            rest = tail;
        }
    }
    let nanos = if rest.is_empty() && !whole.is_empty() { 0 } else { parse_duration(rest).map_err(|_| wrong())? };
    let nanos = u64::try_from(nanos).map_err(|_| "a duration cannot be negative".to_owned())?;
    Ok(Duration::from_secs(days * 86_400) + Duration::from_nanos(nanos))
}

/// As the protocol writes a duration.
pub(super) fn wire(duration: Duration) -> String {
    format_duration(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

/// A time with any offset, in microseconds of Unix time.
fn instant(text: &str) -> Result<i64, String> {
    match serde_json::from_value::<Timestamp>(text.trim().into()) {
        Ok(time) => Ok(time.to_micros()),
        Err(_) => Err("write it like 2030-01-31T12:00:00Z or 2030-01-31T12:00:00+01:00".to_owned()),
    }
}

/// A time for people, in UTC; the protocol's "no time", which is the year 1, and an absent one are a dash.
pub(super) fn shown(time: Option<&Timestamp>) -> String {
    time.filter(|time| **time != Timestamp::YEAR_ONE).map_or_else(|| "-".to_owned(), Timestamp::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, seconds) in [
            ("30s", 30.0),
            ("1500ms", 1.5),
            ("10m", 600.0),
            ("1h30m", 5400.0),
            ("24h", 86_400.0),
            ("7d", 604_800.0),
            ("2w", 1_209_600.0),
            ("1w2d3h", 788_400.0),
            (" 5s ", 5.0),
            ("0", 0.0),
            ("0d", 0.0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
    }

    #[test]
    fn a_duration_without_a_unit_or_with_a_wrong_one_is_refused() {
        for text in ["", "30", "1y", "d", "1h7d", "1d2w", "-1d", "soon", "7 d"] {
            assert_eq!(duration(text), Err("write it like 30s, 10m, 24h or 7d".to_owned()), "{text}");
        }
        assert_eq!(duration("-5s"), Err("a duration cannot be negative".to_owned()));
    }

    #[test]
    fn durations_go_out_as_the_protocol_writes_them() {
        assert_eq!(wire(Duration::from_secs(60)), "1m0s");
        assert_eq!(wire(Duration::from_secs(7 * 86_400)), "168h0m0s");
    }

    #[test]
    fn times_are_read_with_any_offset_and_shown_in_utc() {
        let time = Timestamp::from_micros(instant("2030-01-31T12:00:00+01:00").unwrap());
        assert_eq!(shown(Some(&time)), "2030-01-31T11:00:00Z");
        assert!(instant("tomorrow").is_err());
    }

    #[test]
    fn no_time_is_a_dash() {
        assert_eq!(shown(None), "-");
        assert_eq!(shown(Some(&Timestamp::YEAR_ONE)), "-");
    }

    #[test]
    fn a_delay_counts_from_now() {
        let after = When { at: None, after: Some(Duration::from_secs(3600)) };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64;
        let due = after.instant().unwrap().to_micros();
        assert!((now + 3_600_000_000 - 1..now + 3_660_000_000).contains(&due));
        assert_eq!(When { at: None, after: None }.instant(), None);
    }
}
