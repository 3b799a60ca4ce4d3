//! Texts of users, which may hold a NUL character: PostgreSQL cannot store one in a text.
//!
//! The kernel stores what it is given; whoever takes texts from users, or copies them from elsewhere, writes them like
//! this. Instance ids, names, outputs, custom statuses, keys and values go through here; items and events do not need it,
//! because JSON escapes the NUL itself. What has no such character, which is nearly everything, is stored as it is, so
//! that people can read it with psql.

use std::borrow::Cow;

/// Stands before a character that is written otherwise; itself written twice over.
const ESCAPE: char = '\u{1}';

/// As it is stored.
///
/// ```
/// use tenure_store::text::stored;
/// assert_eq!(stored("order-7"), "order-7");
/// assert_eq!(stored("a\0b"), "a\u{1}0b");
/// ```
pub fn stored(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', ESCAPE]) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match character {
            '\0' => out.extend([ESCAPE, '0']),
            ESCAPE => out.extend([ESCAPE, '1']),
            other => out.push(other),
        }
    }
    Cow::Owned(out)
}

/// As its user wrote it.
///
/// ```
/// use tenure_store::text::{original, stored};
/// assert_eq!(original(stored("a\0b\u{1}").into_owned()), "a\0b\u{1}");
/// ```
pub fn original(text: String) -> String {
    if !text.contains(ESCAPE) {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            ESCAPE => match characters.next() {
                Some('0') => out.push('\0'),
                _ => out.push(ESCAPE),
            },
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back_and_ordinary_ones_are_stored_as_they_are() {
        for text in ["", "plain", "zürich 🦀", "\0", "a\0b\u{1}c\u{1}0", "\u{1}\u{1}", "\u{1}1\0"] {
            let stored = stored(text);
            assert!(!stored.contains('\0'));
            assert_eq!(original(stored.into_owned()), text);
        }
        assert!(matches!(stored("plain"), Cow::Borrowed("plain")));
    }
}
