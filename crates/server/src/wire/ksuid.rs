//! KSUIDs: 160 bits, written as 27 digits of base 62, so that the order of the texts is the order of the numbers.
//!
//! Invariants: the KSUID of a message is its id under a prefix that never changes, so KSUIDs are ordered as messages
//! are, and going back is arithmetic; every KSUID, ours or not, has its place among them.

use std::cmp::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const LENGTH: usize = 27;
/// As many digits as 32 bits can hold are taken off at a time.
const FIVE_DIGITS: u64 = 62_u64.pow(5);
/// The seconds of a KSUID count from here: 2014-05-13T16:53:20Z.
const EPOCH: u64 = 1_400_000_000;
/// What the KSUID of a message begins with: the seconds of 2026-01-01T00:00:00Z, and no payload above the id.
const PREFIX: [u32; 3] = [(1_767_225_600 - EPOCH) as u32, 0, 0];

const WRONG_LENGTH: &str = "Valid encoded KSUIDs are 27 characters";
const OUT_OF_RANGE: &str =
    "Valid encoded KSUIDs are bounded by 000000000000000000000000000 and aWgEPTl1tmebfsQzFP4bxwgy80V";

/// A KSUID as a number, the highest part first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ksuid([u32; 5]);

/// The KSUID of a message. Ids are never negative.
pub(crate) fn of_message(id: i64) -> String {
    let [seconds, high, low] = PREFIX;
    Ksuid([seconds, high, low, (id >> 32) as u32, id as u32]).text()
}

/// A KSUID of its own: the time, and 16 random bytes.
pub(crate) fn random() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let [a, b, c, d]: [u32; 4] = rand::random();
    Ksuid([now.saturating_sub(EPOCH) as u32, a, b, c, d]).text()
}

/// Reads a KSUID; the error is the reason that clients compare.
pub(crate) fn parse(text: &str) -> Result<Ksuid, &'static str> {
    if text.len() != LENGTH {
        return Err(WRONG_LENGTH);
    }
    let mut parts = [0_u32; 5];
    for byte in text.bytes() {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'A'..=b'Z' => byte - b'A' + 10,
            b'a'..=b'z' => byte - b'a' + 36,
            _ => return Err(OUT_OF_RANGE),
        };
        let mut carry = u64::from(digit);
        for part in parts.iter_mut().rev() {
            let product = u64::from(*part) * 62 + carry;
            *part = product as u32;
            carry = product >> 32;
        }
        if carry != 0 {
            return Err(OUT_OF_RANGE);
        }
    }
    Ok(Ksuid(parts))
}

impl Ksuid {
    /// The id of the message that this is the KSUID of, if it is one of ours.
    pub(crate) fn message(&self) -> Option<i64> {
        let [prefix @ .., high, low] = self.0;
        let id = (i64::from(high) << 32) | i64::from(low);
        (prefix == PREFIX && id >= 0).then_some(id)
    }

    /// The least id of a message whose KSUID is not below this one; the greatest of all ids when there is none.
    pub(crate) fn pivot(&self) -> i64 {
        let [prefix @ .., _, _] = self.0;
        match prefix.cmp(&PREFIX) {
            Ordering::Less => 0,
            Ordering::Equal => self.message().unwrap_or(i64::MAX),
            Ordering::Greater => i64::MAX,
        }
    }

    fn text(&self) -> String {
        let mut parts = self.0;
        let mut text = [b'0'; LENGTH];
        for digits in text.rchunks_mut(5) {
            let mut rest = 0_u64;
            for part in &mut parts {
                let dividend = (rest << 32) | u64::from(*part);
                *part = (dividend / FIVE_DIGITS) as u32;
                rest = dividend % FIVE_DIGITS;
            }
            for digit in digits.iter_mut().rev() {
                *digit = DIGITS[(rest % 62) as usize];
                rest /= 62;
            }
        }
        text.iter().map(|digit| char::from(*digit)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use proptest::prelude::*;

    use super::*;

    const GREATEST: &str = "aWgEPTl1tmebfsQzFP4bxwgy80V";

    #[test]
    fn texts_are_those_of_other_ksuid_libraries() {
        let known = [
            ([0x0669_f7ef, 0xb5a1_cd34, 0xb5f9_9d11, 0x54fb_6853, 0x345c_9735], "0ujtsYcgvSTl8PAuAdqWYSMnLOv"),
            ([0x066a_029c, 0x73fc_1aa3, 0xb244_6246, 0xd6e8_9fcd, 0x909e_8fe8], "0ujzPyRiIAffKhBux4PvQdDqMHY"),
            ([0; 5], "000000000000000000000000000"),
            ([u32::MAX; 5], GREATEST),
        ];
        for (parts, text) in known {
            assert_eq!(Ksuid(parts).text(), text);
            assert_eq!(parse(text), Ok(Ksuid(parts)));
        }
        assert_eq!(of_message(1), "37dGalnvVFpJFsmiFDGIwmudA4P");
        assert_eq!(of_message(i64::MAX), "37dGalnvVFpJFsmiQCbRjnSiIqV");
    }

    #[test]
    fn a_text_of_another_length_is_refused_before_its_letters_are_looked_at() {
        for text in ["", "!", "37dGalnvVFpJFsmiFDGIwmudA4", "37dGalnvVFpJFsmiFDGIwmudA4PP"] {
            assert_eq!(parse(text), Err("Valid encoded KSUIDs are 27 characters"), "{text}");
        }
    }

    #[test]
    fn a_text_beyond_160_bits_or_with_other_letters_is_out_of_range() {
        let reason = "Valid encoded KSUIDs are bounded by 000000000000000000000000000 and aWgEPTl1tmebfsQzFP4bxwgy80V";
        for text in ["aWgEPTl1tmebfsQzFP4bxwgy80W", "zzzzzzzzzzzzzzzzzzzzzzzzzzz", "37dGalnvVFpJFsmi-DGIwmudA4P"] {
            assert_eq!(parse(text), Err(reason), "{text}");
        }
    }

    #[test]
    fn every_ksuid_has_its_place_among_the_messages() {
        let pivot = |text: &str| parse(text).unwrap().pivot();
        assert_eq!(pivot("000000000000000000000000000"), 0);
        assert_eq!(pivot("37dGalnvVFpJFsmiFDGIwmudA4N"), 0, "the predecessor of message 0");
        assert_eq!(pivot(&of_message(7)), 7);
        assert_eq!(pivot("37dGalnvVFpJFsmiQCbRjnSiIqW"), i64::MAX, "the successor of the last message");
        assert_eq!(pivot(GREATEST), i64::MAX);
        assert_eq!(parse("37dGalnvVFpJFsmiQCbRjnSiIqW").unwrap().message(), None);
        assert_eq!(parse(GREATEST).unwrap().message(), None);
    }

    #[test]
    fn a_random_ksuid_carries_the_time_and_is_no_message() {
        let (first, second) = (random(), random());
        assert_ne!(first, second);
        let ksuid = parse(&first).unwrap();
        assert!(ksuid.0[0] >= PREFIX[0], "{first} is of now");
        assert_eq!(ksuid.message(), None);
    }

    proptest! {
        #[test]
        fn ksuids_are_ordered_as_the_messages_are(a in 0..=i64::MAX, b in 0..=i64::MAX) {
            prop_assert_eq!(of_message(a).cmp(&of_message(b)), a.cmp(&b));
            prop_assert_eq!(parse(&of_message(a)).unwrap().message(), Some(a));
            prop_assert_eq!(parse(&of_message(a)).unwrap().pivot(), a);
        }

        #[test]
        fn a_ksuid_is_read_as_it_was_written(a in any::<[u32; 5]>(), b in any::<[u32; 5]>()) {
            let (a, b) = (Ksuid(a), Ksuid(b));
            prop_assert_eq!(parse(&a.text()), Ok(a));
            prop_assert_eq!(a.text().cmp(&b.text()), a.cmp(&b));
        }
    }
}
