//! What a command reads, cut into batches that fit into one call.
//!
//! Invariants: a thread reads, so that a slow disk or a silent pipe never holds up the calls, and is not waited for
//! at the end; only a few batches are in memory at a time; a batch goes out when it is full or when nothing more is
//! at hand, so that a line that was typed is not kept waiting for the next thousand; what was read before a fault is
//! still handed out.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::CliError;

/// A longer line is a mistake, and must not fill the memory.
const LONGEST_LINE: u64 = 64_000_000;
/// Bytes read at a time.
const CHUNK: usize = 256 * 1024;
/// Batches that wait for a free call.
const QUEUED: usize = 2;

/// Where items come from.
pub(super) enum Source {
    Texts(Vec<String>),
    /// A whole file is one item.
    Whole(PathBuf),
    /// A line is one item. None: the standard input.
    Lines(Option<PathBuf>),
}

/// How much goes into one batch.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) items: usize,
    pub(super) bytes: usize,
    /// What an item weighs besides its own bytes.
    pub(super) overhead: usize,
}

/// Items that follow each other in their source.
#[derive(Debug, PartialEq)]
pub(super) struct Batch {
    /// The number of the first one, from 1.
    pub(super) first: u64,
    pub(super) items: Vec<Bytes>,
}

impl Batch {
    /// The numbers of all of them.
    pub(super) fn numbers(&self) -> Range<u64> {
        self.first..self.first + self.items.len() as u64
    }
}

/// An item, and whether the next one is not at hand yet.
struct Piece {
    bytes: Bytes,
    pause: bool,
}

/// Starts to read.
pub(super) fn feed(source: Source, limits: Limits) -> Result<mpsc::Receiver<Result<Batch, CliError>>, CliError> {
    let (sender, batches) = mpsc::channel(QUEUED);
    let read = move || cut(pieces(source), limits, |batch| sender.blocking_send(batch).is_ok());
    let thread = std::thread::Builder::new().name("tenure-input".to_owned()).spawn(read);
    thread.map_err(|error| CliError::new(format!("the input cannot be read: {error}")))?;
    Ok(batches)
}

fn pieces(source: Source) -> Box<dyn Iterator<Item = Result<Piece, CliError>>> {
    match source {
        Source::Texts(texts) => Box::new(texts.into_iter().map(|text| Ok(Piece { bytes: text.into(), pause: false }))),
        Source::Whole(path) => Box::new(std::iter::once_with(move || -> Result<Piece, CliError> {
            let bytes = std::fs::read(&path).map_err(|error| unreadable(&path, &error))?;
            Ok(Piece { bytes: bytes.into(), pause: false })
        })),
        Source::Lines(None) => Box::new(Lines::new(Box::new(std::io::stdin()), PathBuf::from("the standard input"))),
        Source::Lines(Some(path)) => match File::open(&path) {
            Ok(file) => Box::new(Lines::new(Box::new(file), path)),
            Err(error) => Box::new(std::iter::once(Err(unreadable(&path, &error)))),
        },
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> CliError {
    CliError::new(format!("{} cannot be read: {error}", path.display()))
}

/// The lines of a file, without their ends.
struct Lines {
    reader: BufReader<Box<dyn Read>>,
    name: PathBuf,
    number: u64,
}

impl Lines {
    fn new(read: Box<dyn Read>, name: PathBuf) -> Self {
        Lines { reader: BufReader::with_capacity(CHUNK, read), name, number: 0 }
    }
}

impl Iterator for Lines {
    type Item = Result<Piece, CliError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.number += 1;
        let mut line = Vec::new();
        match self.reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) => return None,
            Ok(read) if read as u64 == LONGEST_LINE && !line.ends_with(b"\n") => {
                let text = format!("line {} of {} is longer than 64 MB", self.number, self.name.display());
                return Some(Err(CliError::new(text)));
            }
            Ok(_) => {}
            Err(error) => return Some(Err(unreadable(&self.name, &error))),
        }
        if line.ends_with(b"\n") {
            line.pop();
            if line.ends_with(b"\r") {
                line.pop();
            }
        }
        Some(Ok(Piece { bytes: line.into(), pause: self.reader.buffer().is_empty() }))
    }
}

/// Cuts items into batches and hands them on, until there are no more or nobody wants them.
fn cut(
    pieces: impl Iterator<Item = Result<Piece, CliError>>,
    limits: Limits,
    mut hand: impl FnMut(Result<Batch, CliError>) -> bool,
) {
    let mut batch = Batch { first: 1, items: Vec::new() };
    let mut bytes = 0;
    let mut flush = |batch: &mut Batch| {
        let next = Batch { first: batch.numbers().end, items: Vec::new() };
        let full = std::mem::replace(batch, next);
        full.items.is_empty() || hand(Ok(full))
    };
    for piece in pieces {
        let piece = match piece {
            Ok(piece) => piece,
            Err(error) => {
                if flush(&mut batch) {
                    hand(Err(error));
                }
                return;
            }
        };
        let weight = piece.bytes.len() + limits.overhead;
        if bytes + weight > limits.bytes {
            if !flush(&mut batch) {
                return;
            }
            bytes = 0;
        }
        bytes += weight;
        batch.items.push(piece.bytes);
        if piece.pause || batch.items.len() >= limits.items {
            if !flush(&mut batch) {
                return;
            }
            bytes = 0;
        }
    }
    flush(&mut batch);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { items: 2, bytes: 100, overhead: 10 };

    fn batches(pieces: Vec<Result<Piece, CliError>>, limits: Limits) -> Vec<Result<(u64, usize), String>> {
        let mut out = Vec::new();
        cut(pieces.into_iter(), limits, |batch| {
            out.push(batch.map(|batch| (batch.first, batch.items.len())).map_err(|error| error.to_string()));
            true
        });
        out
    }

    fn piece(bytes: usize, pause: bool) -> Result<Piece, CliError> {
        Ok(Piece { bytes: vec![b'x'; bytes].into(), pause })
    }

    #[test]
    fn batches_are_cut_by_number_and_by_size_and_count_their_items() {
        let pieces = vec![piece(1, false), piece(1, false), piece(80, false), piece(20, false), piece(500, false)];
        assert_eq!(batches(pieces, LIMITS), [Ok((1, 2)), Ok((3, 1)), Ok((4, 1)), Ok((5, 1))]);
        assert!(batches(Vec::new(), LIMITS).is_empty());
    }

    #[test]
    fn what_is_at_hand_does_not_wait_for_what_is_not() {
        let pieces = vec![piece(1, true), piece(1, false), piece(1, true), piece(1, false)];
        let limits = Limits { items: 1000, ..LIMITS };
        assert_eq!(batches(pieces, limits), [Ok((1, 1)), Ok((2, 2)), Ok((4, 1))]);
    }

    #[test]
    fn what_was_read_before_a_fault_is_handed_out() {
        let pieces = vec![piece(1, false), Err(CliError::new("no more")), piece(1, false)];
        assert_eq!(batches(pieces, LIMITS), [Ok((1, 1)), Err("no more".to_owned())]);
    }

    #[test]
    fn reading_ends_when_nobody_wants_more() {
        let mut handed = 0;
        let endless = std::iter::repeat_with(|| piece(1, true));
        cut(endless, LIMITS, |_| {
            handed += 1;
            handed < 3
        });
        assert_eq!(handed, 3);
    }

    #[test]
    fn lines_lose_their_ends_and_nothing_else() {
        let text: &[u8] = b"one\r\n\n\xff\x00two\nthree";
        let lines = Lines::new(Box::new(text), PathBuf::from("a test"));
        let read: Vec<(Bytes, bool)> =
            lines.map(|line| line.unwrap()).map(|piece| (piece.bytes, piece.pause)).collect();
        let expected: [(&[u8], bool); 4] = [(b"one", false), (b"", false), (b"\xff\x00two", false), (b"three", true)];
        assert_eq!(read, expected.map(|(bytes, pause)| (Bytes::from_static(bytes), pause)));
    }

    #[tokio::test]
    async fn a_file_that_is_not_there_is_a_fault_of_the_feed() {
        let mut batches = feed(Source::Whole(PathBuf::from("/nowhere/at/all")), LIMITS).unwrap();
        let error = batches.recv().await.unwrap().unwrap_err();
        assert!(error.to_string().starts_with("/nowhere/at/all cannot be read"), "{error}");
        assert!(batches.recv().await.is_none());
    }
}
