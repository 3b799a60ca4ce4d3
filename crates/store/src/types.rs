//! The nouns of the kernel: plain structs with public fields.

mod identity;
mod orchestration;
mod worker;

pub use identity::*;
pub use orchestration::*;
pub use worker::*;

use std::time::{Duration, Instant};

use bytes::Bytes;

/// Microseconds since 1970, in UTC: the kernel's unit of time.
pub type Micros = i64;

/// A queue's settings, as given at creation and as changed later.
///
/// ```
/// use std::time::{Duration, Instant};
/// use tenure_store::Settings;
/// let settings = Settings { lease: Duration::from_secs(60), max_attempts: Some(5), ..Settings::default() };
/// assert_eq!(settings.partitions, 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whose queue it is; names are unique across namespaces all the same. Fixed at creation.
    pub namespace: String,
    /// How many lanes the queue has; fixed at creation.
    pub partitions: u32,
    /// How long a lease lasts when a claim does not say.
    pub lease: Duration,
    /// How long a message may live before it is dead-lettered as expired; none: for ever.
    pub expire: Option<Duration>,
    /// How often a message is delivered before it is dead-lettered; none: without limit.
    pub max_attempts: Option<u32>,
    /// The queue that receives the dead letters; none: they go to the archive.
    pub dead_queue: Option<String>,
    /// How long completed messages stay in the archive; none: they are deleted when they complete, and those that are
    /// [archived](crate::Store::archive) explicitly stay until they are pruned by hand. So do those that are in the archive when
    /// this is taken away from a queue.
    pub retain_completed: Option<Duration>,
    /// How long dead messages stay in the archive; none: until they are replayed or pruned by hand.
    pub retain_dead: Option<Duration>,
    /// Whether a message whose lease runs out goes to the tail (as the HTTP face promises) or keeps its place.
    pub tail_on_expiry: bool,
    /// For how long a dedupe key is remembered, even after its message has finished; zero: for as long as its message lives.
    pub dedupe_window: Duration,
    /// Anything the owner wants to remember about the queue.
    pub reference: String,
    /// Which stores have how many of its partitions, for faces that spread them; empty: all are here. Fixed at creation.
    pub placement: String,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            namespace: "_system".to_owned(),
            partitions: 1,
            lease: Duration::from_secs(30),
            expire: None,
            max_attempts: Some(5),
            dead_queue: None,
            retain_completed: None,
            retain_dead: None,
            tail_on_expiry: false,
            dedupe_window: Duration::from_secs(3600),
            reference: String::new(),
            placement: String::new(),
        }
    }
}

/// A queue as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its number.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Its settings.
    pub settings: Settings,
    /// Since when nothing is handed out from it; none: it runs.
    pub paused_at: Option<Micros>,
    /// When it was created.
    pub created_at: Micros,
    /// When its settings last changed.
    pub updated_at: Micros,
    /// Its lanes, by partition.
    pub lanes: Vec<i64>,
}

/// What a round of housekeeping removed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure_store::Result<()> {
/// let store = tenure_store::Store::connect(":memory:").await?;
/// store.install().await?;
/// assert_eq!(store.maintain().await?, tenure_store::Maintenance::default());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Maintenance {
    /// Finished messages that outlived their queue's retention.
    pub archived: u64,
    /// Dedupe keys whose window has passed and whose messages are gone.
    pub dedupe_keys: u64,
    /// Rows of keys that are free and have no message.
    pub keys: u64,
    /// Records of calls of processes that ended.
    pub calls: u64,
    /// Workers that stopped, or were not heard of, long ago.
    pub workers: u64,
    /// Messages, finished messages and rows of keys that a transaction left in a queue that was deleted before it committed.
    pub orphans: u64,
}

/// A message to enqueue.
///
/// ```
/// use tenure_store::NewMessage;
/// let message = NewMessage { kind: Some("mail".into()), ..NewMessage::new("hello") };
/// assert_eq!(&message.payload[..], b"hello");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewMessage {
    /// The bytes; the kernel never looks at them.
    pub payload: Bytes,
    /// Messages of one key are leased together, to one holder at a time, in order.
    pub key: Option<String>,
    /// A second enqueue with the same dedupe key stores nothing and answers with the first one's id.
    pub dedupe: Option<String>,
    /// When it becomes ready; none: at once.
    pub due: Option<Due>,
    /// Overrides the queue's expiry, counted from when the message is ready.
    pub expire: Option<Duration>,
    /// Overrides the queue's limit of attempts.
    pub max_attempts: Option<u32>,
    /// What the payload is for; the caller's word.
    pub kind: Option<String>,
    /// How the payload is encoded; the caller's word.
    pub encoding: Option<String>,
    /// Anything else the caller wants to see again.
    pub reference: Option<String>,
    /// The worker that enqueues it.
    pub producer: Option<i64>,
}

impl NewMessage {
    /// A plain message, ready at once.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        NewMessage { payload: payload.into(), ..NewMessage::default() }
    }

    /// Checks everything that `enqueue` refuses before it writes.
    ///
    /// # Errors
    /// `InvalidInput` with the reason.
    pub fn check(&self) -> crate::Result<()> {
        crate::ops::enqueue::check(self)
    }
}

/// When something becomes ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// This long after the database has stored it.
    In(Duration),
    /// At this time of the database's clock.
    At(Micros),
}

/// The answer to one enqueued message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// Its identity.
    pub id: i64,
    /// When it was stored. For a duplicate of a message that is finished and not remembered, when its dedupe key was taken,
    /// unless the queue's dedupe window has changed since.
    pub created_at: Micros,
    /// When it becomes ready, if later.
    pub due_at: Option<Micros>,
    /// When it expires, if ever.
    pub expire_at: Option<Micros>,
    /// Whether nothing was stored, because its dedupe key was taken by this id.
    pub duplicate: bool,
    /// For a duplicate, the message that has its dedupe key, as it is now; of an archived one, `leased_until` is the time of its
    /// end. None for a message that was stored, and when the first one is finished and not remembered.
    pub stored: Option<Box<Message>>,
}

/// A message as it is stored, or as a claim hands it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its position in its lane, and one half of the fence.
    pub id: i64,
    /// The identity its producer was given, when it has moved since.
    pub origin_id: Option<i64>,
    /// Its lane.
    pub lane: i64,
    /// How often it was leased; under a lease, the other half of the fence.
    pub attempts: i64,
    /// Its own limit of attempts.
    pub max_attempts: Option<i64>,
    /// Until when it is leased; 0 when it never was, or was given back.
    pub leased_until: Micros,
    /// Who leased it.
    pub worker: Option<i64>,
    /// When it was last leased.
    pub leased_at: Option<Micros>,
    /// When it was enqueued.
    pub created_at: Micros,
    /// When it expires.
    pub expire_at: Option<Micros>,
    /// When it becomes ready: only of scheduled messages.
    pub due_at: Option<Micros>,
    /// In a dead queue: the position at which it died.
    pub buried_id: Option<i64>,
    /// In a dead queue: the queue in which it died.
    pub buried_from: Option<String>,
    /// In a dead queue: why it died.
    pub reason: Option<String>,
    /// The id under which it was imported.
    pub source_id: Option<String>,
    /// Its key.
    pub key: Option<String>,
    /// What the payload is for.
    pub kind: Option<String>,
    /// How the payload is encoded.
    pub encoding: Option<String>,
    /// What the producer wanted to see again.
    pub reference: Option<String>,
    /// The worker that enqueued it.
    pub producer: Option<i64>,
    /// The bytes.
    pub payload: Bytes,
    /// Whether its queue kept completed messages when it was leased.
    pub(crate) keep: bool,
    /// The lease of its key under which it was handed out.
    pub(crate) token: Option<i64>,
    /// When the claim that leased it was sent, by this process's clock.
    pub(crate) asked: Option<Instant>,
}

impl Message {
    /// The id by which its producer knows it, however often it has moved.
    pub fn identity(&self) -> i64 {
        self.origin_id.unwrap_or(self.id)
    }

    /// When the claim that leased this message was sent: its lease ends no earlier than the lease's length after that, by this
    /// process's clock, however late the answer came. Of a message that was not claimed, now.
    pub fn asked_at(&self) -> Instant {
        self.asked.unwrap_or_else(Instant::now)
    }

    /// What proves that the lease under which this message was handed out is still in force.
    pub fn fence(&self) -> Fence {
        let (attempt, keep, token) = (Some(self.attempts), self.keep, self.token);
        Fence { id: self.id, attempt, worker: None, lane: None, token, keep }
    }
}

/// What proves that a lease is still yours. Every verb is compare-and-set on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The message's position.
    pub id: i64,
    /// The attempt under which it was leased; none: whatever attempt is leased now.
    pub attempt: Option<i64>,
    /// The worker that must hold it; none: whoever does.
    pub worker: Option<i64>,
    /// The lane it must be in; none: wherever it is.
    pub lane: Option<i64>,
    /// The lease of its key that it must be under; none: any, or none.
    pub(crate) token: Option<i64>,
    /// Whether completing may have to keep a copy; unknown means yes.
    pub(crate) keep: bool,
}

impl Fence {
    /// Any lease on this message, for faces that do not check ownership.
    pub fn any(id: i64) -> Self {
        Fence { id, attempt: None, worker: None, lane: None, token: None, keep: true }
    }

    /// The token of the key's lease that it must be under, for callers of the database's own function `complete`.
    pub fn token(&self) -> Option<i64> {
        self.token
    }

    /// Exactly this lease.
    pub fn exact(id: i64, attempt: i64) -> Self {
        Fence { id, attempt: Some(attempt), worker: None, lane: None, token: None, keep: true }
    }

    /// The same lease, if this worker holds it.
    #[must_use]
    pub fn by(self, worker: i64) -> Self {
        Fence { worker: Some(worker), ..self }
    }

    /// The same lease, if the message is in this lane: for faces whose callers may name any id.
    #[must_use]
    pub fn within(self, lane: i64) -> Self {
        Fence { lane: Some(lane), ..self }
    }

    /// Whichever lease this worker has on the message.
    pub fn held_by(id: i64, worker: i64) -> Self {
        Fence { id, attempt: None, worker: Some(worker), lane: None, token: None, keep: true }
    }
}

/// What became of a verb on one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This call did it.
    Done,
    /// It had been done under this fence before: a repeat after a lost reply.
    Already,
    /// The message is there, or is remembered, but this fence no longer holds it.
    Lost,
    /// There is no such message: never was, or finished without being kept.
    Unknown,
    /// Nothing was tried, because an earlier one of the same call failed: see [`finish_in_order`](crate::Store::finish_in_order).
    Skipped,
}

/// What became of an extension of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// The lease is extended to this time.
    Until(Micros),
    /// The fence holds, and another transaction has locked the message: it is completing it, or extends its lease too.
    Locked,
    /// The fence no longer holds the message, or there is no such message.
    Lost,
}

/// What a holder wants done with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It is done. A copy goes to the archive if its queue keeps completed messages.
    Complete,
    /// It is done, and no copy is kept whatever its queue says.
    Discard,
    /// It is to be leased again: at once or when due, at its place or at the tail. One that has used up its attempts is
    /// buried instead.
    Retry {
        /// When it is ready again; none: at once.
        due: Option<Due>,
        /// Where.
        place: Place,
    },
    /// It is dead: into the dead queue if there is one, else into the archive.
    Bury {
        /// Why.
        reason: String,
    },
}

/// Where a message goes when it is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where it was: it is the next one of its lane when it is ready again.
    Keep,
    /// Behind everything that is in the lane when it is ready again.
    Tail,
}

/// Which messages a claim wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The lanes to look in, in this order.
    pub lanes: Vec<i64>,
    /// How many at most.
    pub limit: usize,
    /// How long the lease lasts; none: as the queue says.
    pub lease: Option<Duration>,
    /// Who leases.
    pub worker: Option<i64>,
    /// How long to wait for the first message; zero: not at all.
    pub wait: Duration,
}

impl Claim {
    /// Up to `limit` messages of any lane of a queue, without waiting.
    pub fn from_queue(queue: &Queue, limit: usize) -> Self {
        Claim { lanes: queue.lanes.clone(), limit, lease: None, worker: None, wait: Duration::ZERO }
    }
}

/// The first ready messages of one key, under one lease that covers the whole key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyBatch {
    /// The lane.
    pub lane: i64,
    /// The key: no other claim gets it until this lease ends.
    pub key: String,
    /// The fence of this lease.
    pub token: i64,
    /// Until when it is held.
    pub leased_until: Micros,
    /// The messages, in order.
    pub messages: Vec<Message>,
}

impl KeyBatch {
    /// When the claim was sent: see [`Message::asked_at`].
    pub fn asked_at(&self) -> Instant {
        self.messages.first().map_or_else(Instant::now, Message::asked_at)
    }
}

/// How a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its holder completed it.
    Completed,
    /// It ran out of attempts, or was buried by hand.
    Dead,
    /// It lived longer than it was allowed to.
    Expired,
}

impl Outcome {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Outcome::Completed => "completed",
            Outcome::Dead => "dead",
            Outcome::Expired => "expired",
        }
    }
}

/// A finished message that is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archived {
    /// Its identity.
    pub id: i64,
    /// Its queue.
    pub queue: i64,
    /// Its lane.
    pub lane: i64,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, when it died.
    pub reason: Option<String>,
    /// Who held it last.
    pub worker: Option<i64>,
    /// When it was last leased.
    pub leased_at: Option<Micros>,
    /// How often it was delivered.
    pub attempts: i64,
    /// Its own limit of attempts.
    pub max_attempts: Option<i64>,
    /// When it was enqueued.
    pub created_at: Micros,
    /// When it ended.
    pub finished_at: Micros,
    /// When it would have expired.
    pub expire_at: Option<Micros>,
    /// Its key.
    pub key: Option<String>,
    /// What the payload is for.
    pub kind: Option<String>,
    /// How the payload is encoded.
    pub encoding: Option<String>,
    /// What the producer wanted to see again.
    pub reference: Option<String>,
    /// The worker that enqueued it.
    pub producer: Option<i64>,
    /// The bytes.
    pub payload: Bytes,
}

/// Exact counts of one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// The lane.
    pub lane: i64,
    /// Can be leased now.
    pub ready: u64,
    /// Leased now.
    pub leased: u64,
    /// Ready later.
    pub scheduled: u64,
    /// How long the oldest ready message has been waiting.
    pub oldest_ready: Option<Duration>,
    /// When that one was enqueued.
    pub oldest_ready_at: Option<Micros>,
    /// When the newest message, ready or leased, was enqueued.
    pub newest_at: Option<Micros>,
    /// How old the messages of the lane are on average.
    pub average_age: Option<Duration>,
    /// How much longer its leases last on average.
    pub average_lease_left: Option<Duration>,
}

/// What a whole database holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Queues.
    pub queues: u64,
    /// Workers, stopped ones included.
    pub workers: u64,
    /// Workers that were heard of lately.
    pub active_workers: u64,
    /// Finished messages that are remembered.
    pub archived: u64,
    /// Those of them that are dead.
    pub dead: u64,
    /// The newest migration.
    pub schema_version: i64,
}

/// Which messages `clear` removes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clear {
    /// Those that can be leased.
    pub ready: bool,
    /// Those that are leased: their holders lose them.
    pub leased: bool,
    /// Those that are ready later.
    pub scheduled: bool,
}

/// Which messages `list` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Can be leased now.
    Ready,
    /// Leased now.
    Leased,
    /// Ready or leased.
    Live,
    /// Ready later.
    Scheduled,
}

/// A message to import as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Import {
    /// A second import with the same source id into the same lane stores nothing.
    pub source_id: Option<String>,
    /// Until when it is leased; 0: it is not, as must be one with a key.
    pub leased_until: Micros,
    /// When it expires.
    pub expire_at: Option<Micros>,
    /// How often it was delivered.
    pub attempts: i64,
    /// Its own limit of attempts.
    pub max_attempts: Option<i64>,
    /// Its key.
    pub key: Option<String>,
    /// What the payload is for.
    pub kind: Option<String>,
    /// How the payload is encoded.
    pub encoding: Option<String>,
    /// Anything else.
    pub reference: Option<String>,
    /// The bytes.
    pub payload: Bytes,
}

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number, given by the caller.
    pub id: i64,
    /// The bytes.
    pub data: Bytes,
}
