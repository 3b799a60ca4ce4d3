//! `tenure produce`: payloads, a file, or the lines of the standard input.
//!
//! Invariants: the input is never in memory as a whole; a bounded number of calls is in flight; after the first failure
//! nothing more is sent, the calls in flight are waited for, and what is not known to be stored is named.

use std::ops::Range;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use bytes::Bytes;
use clap::Args;
use futures_util::StreamExt as _;
use futures_util::stream::poll_fn;
use indicatif::ProgressBar;
use serde_json::json;
use tokio::sync::mpsc;

use super::feed::{Batch, Limits, Source, feed};
use super::show::{count, progress};
use super::when::When;
use super::{CliError, PATIENCE, Target};
use crate::client::Client;
use crate::wire::{QueueProduceItem, QueueProduceRequest, Reply};

/// Bytes in one call: the server takes 5,000,000 unless it is told otherwise, and items are wrapped a little.
const BYTES: usize = 4_000_000;
/// What an item is wrapped in besides its labels: tags, lengths, a time.
const WRAPPING: usize = 64;

/// Puts messages into a queue.
#[derive(Args)]
pub struct Produce {
    /// The queue.
    #[arg(value_name = "QUEUE")]
    queue: String,
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    when: When,
    /// Sends at most so many messages in one call.
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Makes at most so many calls at the same time; only 1 keeps the order of the input.
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    in_flight: u8,
    #[command(flatten)]
    target: Target,
}

/// What is put in.
#[derive(Args)]
#[group(required = true, multiple = false)]
struct Input {
    /// Payloads, one message each.
    #[arg(value_name = "PAYLOAD")]
    payloads: Vec<String>,
    /// Makes one message of a whole file, byte for byte.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Makes a message of every line of the standard input.
    #[arg(long)]
    stdin: bool,
}

/// What consumers are told about every message.
#[derive(Args)]
struct Labels {
    /// What the payload is, for the consumer.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    kind: String,
    /// How the payload is written, for the consumer.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    encoding: String,
    /// Something to find the message by, for the consumer.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reference: String,
}

impl Labels {
    fn item(&self, when: &When, payload: Bytes) -> QueueProduceItem {
        QueueProduceItem {
            kind: self.kind.clone(),
            encoding: self.encoding.clone(),
            reference: self.reference.clone(),
            enqueue_at: when.instant(),
            bytes: payload,
            ..QueueProduceItem::default()
        }
    }

    fn len(&self) -> usize {
        self.kind.len() + self.encoding.len() + self.reference.len()
    }
}

pub(super) async fn run(mut produce: Produce) -> Result<(), CliError> {
    let client = produce.target.client().await?;
    let limits =
        Limits { items: produce.batch as usize, bytes: BYTES, overhead: WRAPPING.saturating_add(produce.labels.len()) };
    let source = match (produce.input.file.take(), produce.input.stdin) {
        (Some(file), _) => Source::Whole(file),
        (None, true) => Source::Lines(None),
        (None, false) => Source::Texts(std::mem::take(&mut produce.input.payloads)),
    };
    let bar = progress("produced");
    let tally = send(&client, &produce, feed(source, limits)?, &bar).await;
    bar.finish_and_clear();
    let stored = tally.end()?;
    let sentence = format!("produced {} into '{}'", count(stored), produce.queue);
    produce.target.tell(&json!({"queue_name": produce.queue, "produced": stored}), &sentence)
}

/// Sends batches until there are no more, or until one fails.
async fn send(
    client: &Client,
    produce: &Produce,
    mut batches: mpsc::Receiver<Result<Batch, CliError>>,
    bar: &ProgressBar,
) -> Tally {
    let failed = AtomicBool::new(false);
    let more =
        poll_fn(|context| if failed.load(Ordering::Relaxed) { Poll::Ready(None) } else { batches.poll_recv(context) });
    let answers = more.map(|batch| store(client, produce, batch)).buffer_unordered(usize::from(produce.in_flight));
    let mut answers = pin!(answers);
    let mut tally = Tally::default();
    while let Some((numbers, answer)) = answers.next().await {
        failed.fetch_or(answer.is_err(), Ordering::Relaxed);
        tally.count(&numbers, answer);
        bar.set_position(tally.stored);
    }
    tally
}

/// Stores one batch, if it could be read. Answers with the numbers of its items, and with what came of them.
async fn store(
    client: &Client,
    produce: &Produce,
    batch: Result<Batch, CliError>,
) -> (Range<u64>, Result<(), CliError>) {
    let batch = match batch {
        Ok(batch) => batch,
        Err(error) => return (0..0, Err(error)),
    };
    let numbers = batch.numbers();
    let items = batch.items.into_iter().map(|payload| produce.labels.item(&produce.when, payload)).collect();
    let request =
        QueueProduceRequest { queue_name: produce.queue.clone(), request_timeout: PATIENCE.to_owned(), items };
    let answer: Result<Reply, CliError> = client.call("/v1/queue.produce", &request).await;
    (numbers, answer.map(drop))
}

/// What has become of the input so far.
#[derive(Default)]
struct Tally {
    stored: u64,
    /// The number of the last message that was sent, whatever came of it.
    sent: u64,
    /// First and last of every batch that is not known to be stored.
    unsure: Vec<(u64, u64)>,
    /// Why it stopped: the first reason counts.
    stopped: Option<CliError>,
}

impl Tally {
    fn count(&mut self, numbers: &Range<u64>, answer: Result<(), CliError>) {
        let last = numbers.end.saturating_sub(1);
        self.sent = self.sent.max(last);
        match answer {
            Ok(()) => self.stored += numbers.end - numbers.start,
            Err(error) => {
                if !numbers.is_empty() {
                    self.unsure.push((numbers.start, last));
                }
                self.stopped.get_or_insert(error);
            }
        }
    }

    /// How many were stored, or why not all, and what a repeat must leave out.
    fn end(mut self) -> Result<u64, CliError> {
        let Some(error) = self.stopped else { return Ok(self.stored) };
        let mut hint = format!("{} stored", count(self.stored));
        if !self.unsure.is_empty() {
            self.unsure.sort_unstable();
            let numbers: Vec<String> = self.unsure.iter().map(|(first, last)| format!("{first} to {last}")).collect();
            hint.push_str(&format!("; not known to be stored: numbers {} of the input", numbers.join(", ")));
        }
        Err(error.with_hint(format!("{hint}; nothing after number {} was sent", self.sent)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use axum::Router;
    use axum::http::StatusCode;
    use axum::http::header::CONTENT_TYPE;
    use clap::FromArgMatches as _;
    use clap::error::ErrorKind;
    use prost::Message as _;

    use super::super::tests::complaint;
    use super::*;

    #[test]
    fn there_is_one_input_and_no_more() {
        assert_eq!(complaint("tenure produce mail"), Some(ErrorKind::MissingRequiredArgument));
        assert_eq!(complaint("tenure produce mail one two --kind note"), None);
        assert_eq!(complaint("tenure produce mail --stdin --in 30s"), None);
        for line in ["one --stdin", "one --file f", "--file f --stdin", "one --in 30s --at 2030-01-31T12:00:00Z"] {
            assert_eq!(complaint(&format!("tenure produce mail {line}")), Some(ErrorKind::ArgumentConflict), "{line}");
        }
    }

    fn parsed(line: &str) -> Produce {
        let command = Produce::augment_args(clap::Command::new("produce"));
        Produce::from_arg_matches(&command.try_get_matches_from(line.split(' ')).unwrap()).unwrap()
    }

    /// A server that stores the first few calls and refuses the others.
    fn server(works: usize) -> Client {
        let calls = Arc::new(AtomicUsize::new(0));
        Client::Store(Router::new().fallback(move || {
            let refused = calls.fetch_add(1, Ordering::Relaxed) >= works;
            let (code, message) = if refused { (454, "queue is overloaded; try again later") } else { (200, "") };
            let reply = Reply { code, message: message.to_owned(), ..Reply::default() };
            let status = StatusCode::from_u16(code as u16).unwrap();
            async move { (status, [(CONTENT_TYPE, "application/protobuf")], reply.encode_to_vec()) }
        }))
    }

    async fn outcome(line: &str, works: usize) -> Result<u64, String> {
        let mut produce = parsed(line);
        let source = Source::Texts(std::mem::take(&mut produce.input.payloads));
        let limits = Limits { items: produce.batch as usize, bytes: BYTES, overhead: WRAPPING };
        let batches = feed(source, limits).unwrap();
        let tally = send(&server(works), &produce, batches, &ProgressBar::hidden()).await;
        tally.end().map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn everything_is_stored_and_counted() {
        assert_eq!(outcome("produce mail 1 2 3 4 5 --batch 2", 9).await, Ok(5));
    }

    #[tokio::test]
    async fn a_failing_batch_stops_and_says_how_many_were_stored() {
        let error = outcome("produce mail 1 2 3 4 5 --batch 2 --in-flight 1", 1).await.unwrap_err();
        assert!(error.starts_with("queue is overloaded; try again later\n"), "{error}");
        let known =
            "2 messages stored; not known to be stored: numbers 3 to 4 of the input; nothing after number 4 was sent";
        assert!(error.ends_with(known), "{error}");
    }

    #[test]
    fn batches_that_failed_side_by_side_are_named_in_order() {
        let mut tally = Tally::default();
        tally.count(&(5..7), Err(CliError::new("first")));
        tally.count(&(1..3), Err(CliError::new("second")));
        tally.count(&(3..5), Ok(()));
        let error = tally.end().unwrap_err().to_string();
        assert!(error.starts_with("first\n  2 messages stored; "), "{error}");
        assert!(error.contains("numbers 1 to 2, 5 to 6 of the input; nothing after number 6 was sent"), "{error}");
    }

    #[test]
    fn an_input_that_cannot_be_read_on_does_not_cast_doubt_on_what_was_stored() {
        let mut tally = Tally::default();
        tally.count(&(1..3), Ok(()));
        tally.count(&(0..0), Err(CliError::new("the input broke off")));
        let error = tally.end().unwrap_err().to_string();
        assert_eq!(error, "the input broke off\n  2 messages stored; nothing after number 2 was sent");
    }
}
