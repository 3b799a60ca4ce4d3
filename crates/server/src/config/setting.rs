//! How single settings are read, whoever gives them: a flag, the environment or the file.
//!
//! Invariant: an error says what is allowed, and repeats what was given unless it was given in the file; the caller says which
//! setting it was.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserializer;
use serde::de::{self, Visitor};
use tracing_subscriber::EnvFilter;

use crate::wire::go::parse_duration;

/// Host and port; which addresses they are is found out when it matters.
#[derive(Clone)]
pub(crate) struct Address(pub(crate) String);

/// What to log, as tracing's filters say it.
#[derive(Clone)]
pub(crate) struct Filter(pub(crate) String);

/// A store's share of partitions, relative to the others.
#[derive(Clone, Copy)]
pub(crate) struct Affinity(pub(crate) f64);

/// A number of things.
#[derive(Clone, Copy)]
pub(crate) struct Count(pub(crate) u32);

/// A number of bytes.
#[derive(Clone, Copy)]
pub(crate) struct Size(pub(crate) usize);

/// A time, written as in requests.
#[derive(Clone, Copy)]
pub(crate) struct Span(pub(crate) Duration);

impl Count {
    pub(crate) fn get(self) -> usize {
        self.0 as usize
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(Address(text.to_owned())),
            _ => Err(format!("'{text}' is not host:port, such as 127.0.0.1:2319, [::1]:2319 or localhost:2319")),
        }
    }
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match EnvFilter::try_new(text) {
            Ok(_) => Ok(Filter(text.to_owned())),
            Err(error) => Err(format!("'{text}' is not a filter such as warn or info,tenure=debug: {error}")),
        }
    }
}

impl FromStr for Affinity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            Ok(affinity) if affinity > 0.0 && affinity.is_finite() => Ok(Affinity(affinity)),
            _ => Err(format!("'{text}' is not a number above 0")),
        }
    }
}

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(count @ 1..=1_000_000) => Ok(Count(count)),
            _ => Err(format!("'{text}' is not a whole number from 1 to 1000000")),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &text[number.len()..] {
            "" | "B" => Some(1),
            "KB" => Some(1_000),
            "MB" => Some(1_000_000),
            "GB" => Some(1_000_000_000),
            "KiB" => Some(1 << 10),
            "MiB" => Some(1 << 20),
            "GiB" => Some(1 << 30),
            _ => None,
        };
        let size = number.trim().parse::<usize>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
        match size {
            Some(size) if size > 0 => Ok(Size(size)),
            _ => Err(format!("'{text}' is not a number of bytes, such as 5000000, 5MB or 256MiB")),
        }
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const DAY: u64 = 24 * 3600 * 1_000_000_000;
        match parse_duration(text).map(u64::try_from) {
            Ok(Ok(nanoseconds @ 1..=DAY)) => Ok(Span(Duration::from_nanos(nanoseconds))),
            _ => Err(format!("'{text}' is not a duration such as 500ms, 30s or 5m, above 0 and at most 24h")),
        }
    }
}

/// A value of the file, read by the parser of the flag. It is parsed where the reader still knows key and line.
pub(crate) fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err = String>>(value: D) -> Result<Option<T>, D::Error> {
    struct Text<T>(PhantomData<T>);

    impl<T: FromStr<Err = String>> Visitor<'_> for Text<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text or a number")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<T>, E> {
            // The file has the DSNs: one that is given under another key is not printed. The reader says which line it is.
            text.parse().map(Some).map_err(|error: String| E::custom(error.replace(&format!("'{text}'"), "the value")))
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<Option<T>, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<Option<T>, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_f64<E: de::Error>(self, number: f64) -> Result<Option<T>, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_unit<E: de::Error>(self) -> Result<Option<T>, E> {
            Ok(None)
        }
    }

    value.deserialize_any(Text(PhantomData))
}
