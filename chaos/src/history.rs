//! The recorded history of a run: one file of JSON lines for each process.
//!
//! Invariant: a line is written by one system call and without a buffer, so that a process that is killed loses at most
//! the line it was writing.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Microseconds since 1970, or a number of them.
pub type Micros = i64;

/// Something that happened, when, and which process wrote it down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When.
    pub at: Micros,
    /// Which process.
    pub process: String,
    /// What.
    pub event: Event,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// How this history must be read.
    Rules(Rules),
    /// A queue, and whether it keeps completed messages.
    Queue {
        /// Its name.
        name: String,
        /// Whether the archive has everything that was completed.
        keeps: bool,
    },
    /// A call begins.
    Call {
        /// Its number in this process.
        call: u64,
        /// Within this time it must be answered.
        within: Micros,
        /// The server process that must answer it, if it is not the process itself.
        server: Option<String>,
        /// What is asked.
        op: Op,
    },
    /// A call was answered.
    Answer {
        /// Its number in this process.
        call: u64,
        /// The answer.
        result: Answer,
    },
    /// A handler of the run loop begins.
    Begin {
        /// Its message, under a lease with a number of this process.
        lease: Leased,
    },
    /// A handler of the run loop was told that its lease is lost.
    LeaseLost {
        /// Which lease.
        lease: u64,
    },
    /// A handler of the run loop returned.
    End {
        /// Which lease.
        lease: u64,
        /// What it wants done.
        verb: Verb,
    },
    /// The faults are over, and all processes are told to end. What their loops had leased goes back uncounted.
    Ending,
    /// The process has ended by itself.
    Exit,
    /// A process is about to be killed.
    Killed {
        /// Which one.
        target: String,
    },
    /// A process is about to be stopped.
    Stopped {
        /// Which one.
        target: String,
    },
    /// A process was continued.
    Continued {
        /// Which one.
        target: String,
    },
    /// Another fault begins or ends.
    Fault {
        /// What is done.
        what: String,
    },
    /// A message as it was found when the run was over.
    Final {
        /// Its unique name.
        uid: String,
        /// Its id.
        id: i64,
        /// What became of it.
        state: State,
    },
}

/// How a history must be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    /// How far two times may be apart and still count as the same.
    pub slack: Micros,
    /// How much later than promised an answer may come on a machine with two busy cores.
    pub late: Micros,
    /// How long after a fault the order of a lane is not compared; none: a fault does not disturb it.
    pub settle: Option<Micros>,
}

/// What is asked in a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Connects and registers.
    Open,
    /// Enqueues messages, all or none.
    Enqueue {
        /// The messages.
        items: Vec<Item>,
    },
    /// Leases messages of a queue.
    Lease {
        /// Its name.
        queue: String,
    },
    /// Ends leases of this process.
    Finish {
        /// How.
        verb: Verb,
        /// Which ones.
        leases: Vec<u64>,
    },
    /// Extends leases of this process.
    Extend {
        /// Which ones.
        leases: Vec<u64>,
        /// By how much.
        extra: Micros,
    },
}

/// A message as its producer knows it; also the payload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Its unique name.
    pub uid: String,
    /// Its queue.
    pub queue: String,
    /// Messages of one stream are enqueued one call after the other, in the order of their numbers, into one lane; none:
    /// nothing is promised about their order.
    pub stream: Option<String>,
    /// Its number in the stream or in the key.
    pub number: u64,
    /// Its key. All messages of a key come from one producer, one call after the other.
    pub key: Option<String>,
}

/// A message under a lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Leased {
    /// The number of the lease in this process.
    pub lease: u64,
    /// The message's unique name.
    pub uid: String,
    /// The message's id, where it stays the same for the message's whole life.
    pub id: Option<i64>,
    /// How often it has been delivered, this time included.
    pub attempt: i64,
    /// When the lease began, by the database's clock.
    pub from: Micros,
    /// Until when it lasts, by the database's clock; none: the holder has no proof of a deadline.
    pub until: Option<Micros>,
}

/// How a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// The message is done.
    Complete,
    /// The message is dead.
    Bury,
    /// The message is to be delivered again.
    Return,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Carried out, and there is nothing to say about it.
    Done,
    /// The ids of the messages that were enqueued, where the caller learns them.
    Enqueued(Vec<i64>),
    /// What was leased.
    Leased(Vec<Leased>),
    /// One answer for each lease.
    Finished(Vec<Finish>),
    /// Whether the leases were still held, and are longer now.
    Extended(bool),
    /// An error: the call was carried out or not.
    Failed(String),
}

/// The answer for one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// It was ended as asked.
    Done,
    /// It was not held any more.
    Lost,
    /// It was not looked at, because another one in the same call was refused.
    Untouched,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It was completed, and the archive has it.
    Completed,
    /// It is dead, and the archive has it.
    Dead,
    /// It is in its queue.
    Live,
}

/// The machine's clock.
pub fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    micros(since)
}

/// A duration in microseconds.
pub fn micros(duration: Duration) -> Micros {
    Micros::try_from(duration.as_micros()).unwrap_or(Micros::MAX)
}

/// Writes the history of one process.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    process: String,
    next: AtomicU64,
}

impl Recorder {
    /// Opens the file of a process in a folder.
    ///
    /// # Errors
    /// The operating system's own.
    pub fn open(folder: &Path, process: &str) -> std::io::Result<Self> {
        let file = File::options().create(true).append(true).open(folder.join(format!("{process}.jsonl")))?;
        Ok(Recorder { file, process: process.to_owned(), next: AtomicU64::new(1) })
    }

    /// Writes a line.
    ///
    /// # Panics
    /// When the file cannot be written: a history with a hole proves nothing.
    pub fn write(&self, event: Event) {
        let record = Record { at: now(), process: self.process.clone(), event };
        let mut line = serde_json::to_vec(&record).expect("an event can be written as JSON");
        line.push(b'\n');
        (&self.file).write_all(&line).expect("the history can be written");
    }

    /// A number that nothing else of this process has.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// A line that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Its process.
    pub process: String,
    /// Its number in the file, from 1.
    pub line: usize,
}

/// Reads one process's lines. A last line without an end is what a killed process was writing, and is left out; any
/// other line that cannot be read is reported.
pub fn parse(process: &str, text: &str) -> (Vec<Record>, Vec<Torn>) {
    let (mut records, mut torn) = (Vec::new(), Vec::new());
    for (index, line) in text.split_inclusive('\n').enumerate() {
        match serde_json::from_str(line) {
            Ok(record) if line.ends_with('\n') => records.push(record),
            _ if !line.ends_with('\n') => {}
            _ => torn.push(Torn { process: process.to_owned(), line: index + 1 }),
        }
    }
    (records, torn)
}

/// Reads all histories of a folder, in the order of time.
///
/// # Errors
/// The operating system's own.
pub fn read(folder: &Path) -> std::io::Result<(Vec<Record>, Vec<Torn>)> {
    let (mut records, mut torn) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let process = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let (read, broken) = parse(&process, &String::from_utf8_lossy(&std::fs::read(&path)?));
            records.extend(read);
            torn.extend(broken);
        }
    }
    records.sort_by_key(|record| record.at);
    Ok((records, torn))
}
