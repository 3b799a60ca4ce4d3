//! API keys as texts: `qtr-<tag>-<43 digits in base 62>`, where the digits are 32 random bytes.
//!
//! Invariants: the text of a key leaves this process once, in the answer to the call that made it; what is stored,
//! looked up and remembered is its SHA-256 and nothing else.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::TryRngCore as _;
use rand::rngs::OsRng;
use sha2::{Digest as _, Sha256};

use crate::fault::{Answer, Fault};

/// The tag of a key when neither the request nor its namespace names one.
pub(crate) const DEFAULT_TAG: &str = "live";

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const START: &str = "qtr-";
/// 32 bytes need at most so many digits in base 62.
const DIGITS: usize = 43;
/// How many of the digits may be shown to tell keys apart.
const SHOWN: usize = 8;
const MAX_TAG: usize = 16;

/// A key that was just made.
pub(crate) struct NewKey {
    /// The key itself, for its owner's eyes only.
    pub(crate) text: String,
    /// Its beginning, by which people recognise it.
    pub(crate) prefix: String,
    /// What is stored of it.
    pub(crate) hash: String,
}

/// Makes a key from the operating system's randomness.
pub(crate) fn generate(tag: &str) -> Answer<NewKey> {
    let mut entropy = [0; 32];
    if let Err(error) = OsRng.try_fill_bytes(&mut entropy) {
        tracing::error!(%error, "the operating system gives no random numbers, without which no api key can be made");
        return Err(Fault::failed("failed to generate api key"));
    }
    let digits = base62(entropy);
    let text = format!("{START}{tag}-{digits}");
    let prefix = format!("{START}{tag}-{}", &digits[..SHOWN]);
    let hash = KeyHash::of(text.as_bytes()).text();
    Ok(NewKey { text, prefix, hash })
}

/// Refuses a tag that cannot stand in a key; empty means none. `field` is its name on the wire.
pub(crate) fn check_tag(field: &str, tag: &str) -> Answer<()> {
    if tag.len() > MAX_TAG {
        return Err(Fault::bad(format!("{field} is invalid; cannot be greater than {MAX_TAG} characters")));
    }
    if !is_tag(tag.as_bytes()) {
        return Err(Fault::bad(format!("{field} is invalid; must be lowercase alphanumeric only")));
    }
    Ok(())
}

/// Whether this could be a key that we made.
pub(super) fn is_well_formed(key: &[u8]) -> bool {
    let Some(rest) = key.strip_prefix(START.as_bytes()) else { return false };
    let Some(dash) = rest.iter().position(|byte| *byte == b'-') else { return false };
    let (tag, digits) = (&rest[..dash], &rest[dash + 1..]);
    let tagged = !tag.is_empty() && tag.len() <= MAX_TAG && is_tag(tag);
    tagged && digits.len() == DIGITS && digits.iter().all(u8::is_ascii_alphanumeric)
}

fn is_tag(tag: &[u8]) -> bool {
    tag.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// The SHA-256 of a whole key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct KeyHash([u8; 32]);

impl KeyHash {
    pub(super) fn of(key: &[u8]) -> Self {
        KeyHash(Sha256::digest(key).into())
    }

    /// As it is stored.
    pub(super) fn text(self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// A hash that is like no other, for tests.
    #[cfg(test)]
    pub(super) fn for_test(n: u8) -> Self {
        KeyHash([n; 32])
    }
}

/// The number that the bytes are, highest first, in base 62, with zeros in front up to the full length.
fn base62(mut number: [u8; 32]) -> String {
    let mut digits = ['0'; DIGITS];
    for digit in digits.iter_mut().rev() {
        let mut remainder = 0;
        for byte in &mut number {
            let part = (remainder << 8) | u32::from(*byte);
            // Below 256, because the remainder was below 62.
            *byte = (part / 62) as u8;
            remainder = part % 62;
        }
        *digit = char::from(BASE62[remainder as usize]);
    }
    digits.iter().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test is meant to panic")]

    use super::*;

    #[test]
    fn a_number_is_written_with_zeros_in_front() {
        let mut bytes = [0; 32];
        assert_eq!(base62(bytes), "0".repeat(43));
        bytes[31] = 61;
        assert_eq!(base62(bytes), format!("{}z", "0".repeat(42)));
        bytes[31] = 62;
        assert_eq!(base62(bytes), format!("{}10", "0".repeat(41)));
        bytes[30..].copy_from_slice(&[1, 0]);
        assert_eq!(base62(bytes), format!("{}48", "0".repeat(41)));
    }

    #[test]
    fn every_byte_of_a_number_counts_and_the_largest_fits() {
        // Read back digit by digit, it must be all ones again.
        let text = base62([0xff; 32]);
        let mut number = [0u8; 32];
        for digit in text.bytes() {
            let mut carry = BASE62.iter().position(|known| *known == digit).unwrap() as u32;
            for byte in number.iter_mut().rev() {
                carry += u32::from(*byte) * 62;
                *byte = (carry & 0xff) as u8;
                carry >>= 8;
            }
            assert_eq!(carry, 0);
        }
        assert_eq!((text.len(), number), (43, [0xff; 32]));
    }

    #[test]
    fn a_new_key_is_well_formed_tells_its_tag_and_is_stored_as_its_hash() {
        let key = generate("prod7").unwrap();
        assert!(is_well_formed(key.text.as_bytes()));
        assert_eq!(key.text.len(), "qtr-prod7-".len() + 43);
        assert_eq!(key.prefix.len(), "qtr-prod7-".len() + 8);
        assert!(key.text.starts_with(&key.prefix));
        assert_eq!(key.hash, KeyHash::of(key.text.as_bytes()).text());
        assert_ne!(key.text, generate("prod7").unwrap().text);
    }

    #[test]
    fn a_hash_is_written_in_base64_for_urls_without_padding() {
        assert_eq!(KeyHash::of(b"abc").text(), "ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0");
    }

    #[test]
    fn what_we_did_not_make_is_not_well_formed() {
        let digits = "0aZ".repeat(14) + "9";
        for good in ["live", "a", "0123456789abcdef"] {
            assert!(is_well_formed(format!("qtr-{good}-{digits}").as_bytes()), "{good}");
        }
        for bad in [
            String::new(),
            "qtr-".to_owned(),
            "qtr-live".to_owned(),
            "qtr-live-".to_owned(),
            format!("qtr--{digits}"),
            format!("qtr-Live-{digits}"),
            format!("qtr-0123456789abcdef0-{digits}"),
            format!("qtr-live-{}", &digits[1..]),
            format!("qtr-live-{digits}0"),
            format!("qtr-live-{}-", &digits[1..]),
            format!("QTR-live-{digits}"),
            format!(" qtr-live-{digits}"),
            digits,
        ] {
            assert!(!is_well_formed(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn a_tag_is_short_and_lowercase() {
        let says = |tag| check_tag("key_tag", tag).err().map(|fault| (fault.code, fault.message));
        assert_eq!(says(""), None);
        assert_eq!(says("0123456789abcdef"), None);
        let long = "key_tag is invalid; cannot be greater than 16 characters";
        assert_eq!(says("0123456789ABCDEF0"), Some((400, long.to_owned())));
        let other = "key_tag is invalid; must be lowercase alphanumeric only";
        for tag in ["Live", "a-b", "é", " "] {
            assert_eq!(says(tag), Some((400, other.to_owned())), "{tag}");
        }
    }
}
