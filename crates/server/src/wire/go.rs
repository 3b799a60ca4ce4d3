//! Durations as Go writes and reads them, with the errors of Go's own parser, which clients compare.

const MICROSECOND: u64 = 1000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
/// The size of the longest negative duration, one more than that of the longest positive one.
const LONGEST: u64 = 1 << 63;

/// Nanoseconds of a text like `1h30m` or `-1.5s`; the error is the one of Go's time.ParseDuration.
pub(crate) fn parse_duration(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {}", quote(text));
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = 0_u64;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let number = match whole.parse::<u64>() {
            Ok(number) if number <= LONGEST => number,
            Err(_) if whole.is_empty() => 0,
            _ => return Err(invalid()),
        };
        let next = after.find(|letter: char| letter == '.' || letter.is_ascii_digit()).unwrap_or(after.len());
        let (name, after) = after.split_at(next);
        if name.is_empty() {
            return Err(format!("time: missing unit in duration {}", quote(text)));
        }
        let Some(unit) = unit(name) else {
            return Err(format!("time: unknown unit {} in duration {}", quote(name), quote(text)));
        };
        let size = number.checked_mul(unit).and_then(|size| size.checked_add(part(fraction, unit)));
        total = size.and_then(|size| total.checked_add(size)).filter(|total| *total <= LONGEST).ok_or_else(invalid)?;
        rest = after;
    }
    // The negation wraps for one size only, which is right as it is.
    if negative { Ok((total as i64).wrapping_neg()) } else { i64::try_from(total).map_err(|_| invalid()) }
}

/// The digits that a text begins with, and what follows.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()))
}

fn unit(name: &str) -> Option<u64> {
    match name {
        "ns" => Some(1),
        // The micro sign and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => Some(MICROSECOND),
        "ms" => Some(MILLISECOND),
        "s" => Some(SECOND),
        "m" => Some(MINUTE),
        "h" => Some(HOUR),
        _ => None,
    }
}

/// A decimal fraction of a unit, in Go's arithmetic: digits beyond 63 bits are dropped, the rest is cut off in an f64.
fn part(fraction: &str, unit: u64) -> u64 {
    let (mut number, mut scale) = (0_u64, 1_f64);
    for digit in fraction.bytes() {
        if number > (LONGEST - 1) / 10 {
            break;
        }
        let next = number * 10 + u64::from(digit - b'0');
        if next > LONGEST {
            break;
        }
        number = next;
        scale *= 10.0;
    }
    (number as f64 * (unit as f64 / scale)) as u64
}

/// A text as package time quotes it in its errors.
fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', byte.into()]),
            b' '..0x80 => quoted.push(byte.into()),
            _ => quoted.push_str(&format!("\\x{byte:02x}")),
        }
    }
    quoted.push('"');
    quoted
}

/// The text of Go's Duration.String, like `1h30m0s`, `1.5s` or `100µs`.
pub(crate) fn format_duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let size = nanos.unsigned_abs();
    let seconds = decimal(size % MINUTE, SECOND);
    match (size, size / HOUR, size / MINUTE % 60) {
        (0, ..) => "0s".to_owned(),
        (..MICROSECOND, ..) => format!("{sign}{size}ns"),
        (..MILLISECOND, ..) => format!("{sign}{}\u{b5}s", decimal(size, MICROSECOND)),
        (..SECOND, ..) => format!("{sign}{}ms", decimal(size, MILLISECOND)),
        (_, 0, 0) => format!("{sign}{seconds}s"),
        (_, 0, minutes) => format!("{sign}{minutes}m{seconds}s"),
        (_, hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}s"),
    }
}

/// A size in a unit that is a power of ten, without needless digits.
fn decimal(size: u64, unit: u64) -> String {
    let (whole, rest) = (size / unit, size % unit);
    if rest == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    format!("{whole}.{rest:0width$}").trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let good = [
            ("0", 0),
            ("-0", 0),
            ("+0", 0),
            ("5s", 5_000_000_000),
            ("+5s", 5_000_000_000),
            ("-5s", -5_000_000_000),
            ("5.0s", 5_000_000_000),
            ("5.s", 5_000_000_000),
            (".5s", 500_000_000),
            ("1.0040s", 1_004_000_000),
            ("100.00100s", 100_001_000_000),
            ("10ns", 10),
            ("11us", 11_000),
            ("12\u{b5}s", 12_000),
            ("12\u{3bc}s", 12_000),
            ("13ms", 13_000_000),
            ("14s", 14_000_000_000),
            ("15m", 900_000_000_000),
            ("16h", 57_600_000_000_000),
            ("3h30m", 12_600_000_000_000),
            ("-1.5m4.5s10ms", -94_510_000_000),
            ("39h9m14.425s", 140_954_425_000_000),
            ("52763797000ns", 52_763_797_000),
            ("0.3333333333333333333h", 1_200_000_000_000),
            ("9007199254740993ns", 9_007_199_254_740_993),
            ("9223372036854775.807us", i64::MAX),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("0.100000000000000000000h", 360_000_000_000),
            ("0.830103483285477580700h", 2_988_372_539_827),
        ];
        for (text, nanos) in good {
            assert_eq!(parse_duration(text), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn errors_are_those_of_go() {
        let error = |text| parse_duration(text).unwrap_err();
        for text in ["", "-", "+", ".", "-.", ".s", "+.s", "s", "--5s", "9223372036854775809x"] {
            assert_eq!(error(text), format!("time: invalid duration \"{text}\""));
        }
        let too_long = [
            "3000000h",
            "9223372036854775808ns",
            "-9223372036854775809ns",
            "9223372036854775.808us",
            "2562047h47m16.854775808s",
            "99999999999999999999s",
            "-9223372036854775808ns9223372036854775808ns",
        ];
        for text in too_long {
            assert_eq!(error(text), format!("time: invalid duration \"{text}\""));
        }
        assert_eq!(error("3"), r#"time: missing unit in duration "3""#);
        assert_eq!(error("1s2"), r#"time: missing unit in duration "1s2""#);
        assert_eq!(error("foo"), r#"time: invalid duration "foo""#);
        assert_eq!(error("1d"), r#"time: unknown unit "d" in duration "1d""#);
        assert_eq!(error("5 s"), r#"time: unknown unit " s" in duration "5 s""#);
        assert_eq!(error("1\"\\"), r#"time: unknown unit "\"\\" in duration "1\"\\""#);
        assert_eq!(error("1é\n"), r#"time: unknown unit "\xc3\xa9\x0a" in duration "1\xc3\xa9\x0a""#);
    }

    #[test]
    fn durations_are_printed_as_go_prints_them() {
        let texts = [
            (0, "0s"),
            (1, "1ns"),
            (1100, "1.1\u{b5}s"),
            (1_000_000, "1ms"),
            (2_200_000, "2.2ms"),
            (999_999_999, "999.999999ms"),
            (1_000_000_000, "1s"),
            (1_500_000_000, "1.5s"),
            (3_300_000_000, "3.3s"),
            (60_000_000_000, "1m0s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (960_000_000_000, "16m0s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (86_400_000_000_000, "24h0m0s"),
            (480_000_000_001, "8m0.000000001s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ];
        for (nanos, text) in texts {
            assert_eq!(format_duration(nanos), text);
            if nanos > 0 {
                assert_eq!(format_duration(-nanos), format!("-{text}"));
            }
        }
    }

    proptest! {
        #[test]
        fn a_duration_is_read_as_it_was_printed(nanos in any::<i64>(), shift in 0..64) {
            let nanos = nanos >> shift;
            prop_assert_eq!(parse_duration(&format_duration(nanos)), Ok(nanos));
        }

        #[test]
        fn any_text_is_read_or_refused(text in any::<String>(), like in "[-+]?([0-9.]{0,25}[a-zµ]{0,2}){0,3}") {
            let _ = (parse_duration(&text), parse_duration(&like));
        }
    }
}
