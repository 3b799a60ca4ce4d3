//! What commands print: tables for people, JSON for machines.
//!
//! Invariants: what a cell shows cannot move the cursor, whatever a payload holds; what was printed has left this
//! process before the command goes on.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::CliError;

/// Prints lines, and waits until they are out.
pub(super) fn print(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|error| CliError::output(&error))
}

/// Prints one JSON document on one line.
pub(super) fn print_json<T: Serialize>(value: &T) -> Result<(), CliError> {
    print(&json(value)?)
}

/// Prints one JSON document a line.
pub(super) fn print_json_lines<T: Serialize>(values: &[T]) -> Result<(), CliError> {
    let lines: Vec<String> = values.iter().map(json).collect::<Result<_, _>>()?;
    if lines.is_empty() { Ok(()) } else { print(&lines.join("\n")) }
}

fn json<T: Serialize>(value: &T) -> Result<String, CliError> {
    serde_json::to_string(value)
        .map_err(|error| CliError::new(format!("the answer cannot be written as JSON: {error}")))
}

/// A table; the columns named in `numbers` are aligned to the right.
pub(super) fn table<const N: usize>(header: [&str; N], numbers: &[usize], rows: &[[String; N]]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(header);
    for row in rows {
        table.add_row(row.iter().map(|cell| plain(cell)));
    }
    for number in numbers {
        if let Some(column) = table.column_mut(*number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The text with its control characters written out, so that a payload can neither break a line nor command a terminal.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    out
}

/// A payload as text, or in base64 when it is not text.
pub(super) fn payload(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("base64:{}", STANDARD.encode(bytes)),
    }
}

/// The beginning of a text.
pub(super) fn beginning(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A text, or a dash for none.
pub(super) fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

/// How many there are, in words.
pub(super) fn count(number: u64) -> String {
    if number == 1 { "1 message".to_owned() } else { format!("{number} messages") }
}

/// A counter on the terminal, for work whose end is not known. Nothing is drawn where there is no terminal.
pub(super) fn progress(done: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {human_pos} {msg} {per_sec:>14}");
    let bar = ProgressBar::no_length().with_message(done);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right() {
        let rows = [["mail", "5"], ["jobs", "12"]].map(|row| row.map(str::to_owned));
        let table = table(["queue", "messages"], &[1], &rows).to_string();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4, "{table}");
        assert_eq!((lines[2], lines[3]), ("| mail  |        5 |", "| jobs  |       12 |"));
    }

    #[test]
    fn a_payload_cannot_command_the_terminal() {
        let rows = [["a\nb\u{1b}[2J".to_owned()]];
        let table = table(["payload"], &[], &rows).to_string();
        assert!(table.contains("a\\nb\\u{1b}[2J"), "{table}");
        assert_eq!(table.lines().count(), 3, "{table}");
    }

    #[test]
    fn what_is_not_text_is_shown_in_base64() {
        assert_eq!(payload("grüße".as_bytes()), "grüße");
        assert_eq!(payload(&[0xff, 0x00]), "base64:/wA=");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(beginning("grüße", 3), "grü…");
        assert_eq!(beginning("grüße", 5), "grüße");
    }
}
