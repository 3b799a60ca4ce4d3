//! `tenure import`: stores messages that were listed elsewhere, as `tenure message list --json` prints them.
//!
//! Invariant: the order of the lines is kept, one call after the other; a line that cannot be read stops the import
//! after everything before it has been stored.

use std::path::PathBuf;

use bytes::Bytes;
use clap::Args;

use super::feed::{Batch, Limits, Source, feed};
use super::show::{count, print, print_json_lines, progress};
use super::{CliError, Target};
use crate::client::Client;
use crate::wire::{Encoding, StorageItem, StorageItemsImportRequest, StorageItemsImportResponse, decode};

/// Lines in one call, and their bytes: JSON is longer than what goes over the wire, and that may have 64,000,000.
const LIMITS: Limits = Limits { items: 1000, bytes: 16_000_000, overhead: 0 };

/// Stores messages that were listed elsewhere.
#[derive(Args)]
pub struct Import {
    /// The queue.
    #[arg(value_name = "QUEUE")]
    queue: String,
    /// The partition.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
    partition: i32,
    /// A file with a message a line, as `tenure message list --json` prints them; - is the standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(import: &Import) -> Result<(), CliError> {
    let client = import.target.client().await?;
    let source = Source::Lines((import.file.as_os_str() != "-").then(|| import.file.clone()));
    let mut batches = feed(source, LIMITS)?;
    let bar = progress("imported");
    let mut imported = 0;
    while let Some(batch) = batches.recv().await {
        let stored = match batch {
            Ok(batch) => store(&client, import, batch, &mut imported).await,
            Err(error) => Err(error),
        };
        stored.map_err(|error| error.with_hint(format!("{} imported", count(imported))))?;
        bar.set_position(imported);
    }
    bar.finish_and_clear();
    if import.target.json {
        return Ok(());
    }
    print(&format!("imported {} into '{}'", count(imported), import.queue))
}

/// Stores one batch: all its lines, or those before the first that cannot be read.
async fn store(client: &Client, import: &Import, batch: Batch, imported: &mut u64) -> Result<(), CliError> {
    let (items, fault) = read(batch);
    if !items.is_empty() {
        let request =
            StorageItemsImportRequest { queue_name: import.queue.clone(), partition: import.partition, items };
        let stored: StorageItemsImportResponse = client.call("/v1/storage/items.import", &request).await?;
        *imported += stored.items.len() as u64;
        if import.target.json {
            print_json_lines(&stored.items)?;
        }
    }
    fault.map_or(Ok(()), Err)
}

/// The messages of a batch, and what is wrong with the first line that is none. Empty lines are passed over.
fn read(batch: Batch) -> (Vec<StorageItem>, Option<CliError>) {
    let mut items = Vec::with_capacity(batch.items.len());
    for (number, line) in (batch.first..).zip(batch.items) {
        if line.trim_ascii().is_empty() {
            continue;
        }
        match item(line) {
            Ok(item) => items.push(item),
            Err(why) => {
                let error = CliError::new(format!("line {number} is not a message: {why}"));
                return (items, Some(error.with_hint("`tenure message list --json` prints them as they must be")));
            }
        }
    }
    (items, None)
}

fn item(line: Bytes) -> Result<StorageItem, String> {
    decode(Encoding::Json, line).map_err(|fault| fault.message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Timestamp;

    fn batch(lines: &[&str]) -> Batch {
        Batch { first: 11, items: lines.iter().map(|line| Bytes::copy_from_slice(line.as_bytes())).collect() }
    }

    #[test]
    fn what_a_list_prints_can_be_imported() {
        let item = StorageItem {
            id: "x".to_owned(),
            attempts: 2,
            lease_deadline: Some(Timestamp::YEAR_ONE),
            payload: Bytes::from_static(b"\xff\x00"),
            ..StorageItem::default()
        };
        let line = serde_json::to_string(&item).unwrap();
        let (items, fault) = read(batch(&[&line, "", &line]));
        assert!(fault.is_none());
        assert_eq!(items, [item.clone(), item]);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named_and_those_before_it_are_kept() {
        let (items, fault) = read(batch(&[r#"{"id":"x"}"#, "", "nonsense", r#"{"id":"y"}"#]));
        assert_eq!(items.len(), 1);
        let fault = fault.unwrap().to_string();
        assert!(fault.starts_with("line 13 is not a message: "), "{fault}");
    }
}
