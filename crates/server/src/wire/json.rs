//! Protobuf's JSON, where it differs from what serde does by itself. build.rs names these in the generated types.
//!
//! Invariants: null is the same as absent; a message is an object and nothing else; numbers and bytes are read in every
//! form that protobuf's JSON allows, and written in one.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, Deserializer, Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

use super::{MOST_ELEMENTS, TOO_MANY};

/// Reads a whole body.
pub(super) fn parse<M: DeserializeOwned>(body: &[u8]) -> serde_json::Result<M> {
    serde_json::from_slice::<Object<M>>(body).map(|object| object.0)
}

/// Whether a field is left out.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A text, a bool, a list or a map.
pub(super) fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// A list of messages.
pub(super) fn messages<'de, D, M>(deserializer: D) -> Result<Vec<M>, D::Error>
where
    D: Deserializer<'de>,
    M: Deserialize<'de>,
{
    Ok(Option::<List<M>>::deserialize(deserializer)?.map(|list| list.0).unwrap_or_default())
}

/// A list that is not longer than it may be.
struct List<M>(Vec<M>);

impl<'de, M: Deserialize<'de>> Deserialize<'de> for List<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements<M>(PhantomData<M>);
        impl<'de, M: Deserialize<'de>> Visitor<'de> for Elements<M> {
            type Value = List<M>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<List<M>, A::Error> {
                let mut list = Vec::new();
                while let Some(Object(message)) = elements.next_element()? {
                    if list.len() == MOST_ELEMENTS {
                        return Err(A::Error::custom(TOO_MANY));
                    }
                    list.push(message);
                }
                Ok(List(list))
            }
        }
        deserializer.deserialize_seq(Elements(PhantomData))
    }
}

/// A whole number, also when it is written as 1e2, 1.0 or "1".
pub(super) fn int32<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    deserializer.deserialize_any(Int32)
}

struct Int32;

impl Visitor<'_> for Int32 {
    type Value = i32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number of 32 bits")
    }

    fn visit_unit<E: Error>(self) -> Result<i32, E> {
        Ok(0)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<i32, E> {
        self.visit_f64(number as f64)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<i32, E> {
        self.visit_f64(number as f64)
    }

    /// Every number of 32 bits is exact in an f64, and what is rounded on the way to one is out of range anyway.
    fn visit_f64<E: Error>(self, number: f64) -> Result<i32, E> {
        if number.fract() == 0.0 && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&number) {
            Ok(number as i32)
        } else {
            Err(E::invalid_value(Unexpected::Float(number), &self))
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<i32, E> {
        match serde_json::from_str::<f64>(text) {
            Ok(number) if text.trim() == text => self.visit_f64(number),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}

/// Bytes, written in the standard alphabet with padding. The URL-safe alphabet and missing padding are read too.
pub(super) mod base64 {
    use std::fmt;

    use ::base64::Engine;
    use ::base64::alphabet;
    use ::base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
    use bytes::Bytes;
    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent);
    static STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
    static URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

    pub(in crate::wire) fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(in crate::wire) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        deserializer.deserialize_any(Base64)
    }

    struct Base64;

    impl Visitor<'_> for Base64 {
        type Value = Bytes;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes in base64")
        }

        fn visit_unit<E: Error>(self) -> Result<Bytes, E> {
            Ok(Bytes::new())
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Bytes, E> {
            let decoded = STANDARD.decode(text).or_else(|_| URL_SAFE.decode(text));
            decoded.map(Bytes::from).map_err(E::custom)
        }
    }
}

/// A message, from an object only: serde's own reading of a struct would also take a list of its fields.
struct Object<M>(M);

impl<'de, M: Deserialize<'de>> Deserialize<'de> for Object<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        M::deserialize(AsMap(deserializer)).map(Object)
    }
}

/// Asks for a map, whatever it is asked for itself.
struct AsMap<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for AsMap<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use bytes::Bytes;

    use super::parse;
    use crate::wire::{QueueProduceItem, QueuesListRequest, Reply};

    fn limit(value: &str) -> Option<i32> {
        let body = format!(r#"{{"limit":{value}}}"#);
        parse::<QueuesListRequest>(body.as_bytes()).ok().map(|request| request.limit)
    }

    fn bytes(text: &str) -> Option<Bytes> {
        let body = format!(r#"{{"bytes":"{text}"}}"#);
        parse::<QueueProduceItem>(body.as_bytes()).ok().map(|item| item.bytes)
    }

    #[test]
    fn a_number_may_be_written_in_any_way_that_is_whole_and_fits() {
        for value in ["100", "1e2", "100.0", "1000e-1", r#""100""#, r#""1e2""#] {
            assert_eq!(limit(value), Some(100), "{value}");
        }
        assert_eq!((limit("2147483647"), limit("-2147483648")), (Some(i32::MAX), Some(i32::MIN)));
        assert_eq!((limit("null"), limit("-0")), (Some(0), Some(0)));
        for value in ["2147483648", "-2147483649", "18446744073709551616", "1e10", "0.5", "true", "[1]", "01"] {
            assert_eq!(limit(value), None, "{value}");
        }
        for value in ["", " 1", "1 ", "0.5", "x", "null"] {
            assert_eq!(limit(&format!("\"{value}\"")), None, "{value}");
        }
    }

    #[test]
    fn bytes_are_read_in_both_alphabets_with_or_without_padding() {
        for text in ["+/8=", "+/8", "-_8=", "-_8"] {
            assert_eq!(bytes(text), Some(Bytes::from_static(&[0xfb, 0xff])), "{text}");
        }
        assert_eq!(bytes(""), Some(Bytes::new()));
        for text in ["+/8==", "+_8=", "+", "+/8= ", "$$$$"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn a_map_of_texts_is_an_object() {
        let reply: Reply = parse(br#"{"details":{"b":"2","a":"1"}}"#).unwrap();
        assert_eq!(serde_json::to_string(&reply).unwrap(), r#"{"details":{"a":"1","b":"2"}}"#);
        assert!(parse::<Reply>(br#"{"details":{"a":1}}"#).is_err());
        assert!(parse::<Reply>(br#"{"details":[]}"#).is_err());
    }
}
