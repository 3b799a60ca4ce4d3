//! What orchestrations are made of: instances, their turns, their activities.
//!
//! The kernel never reads an item or an event: they are texts that their writer understands.

use std::time::Duration;

use crate::types::Micros;

/// A message for an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewTurnMessage {
    /// Whom it is for.
    pub instance: String,
    /// When it can be seen; none: at once.
    pub visible_at: Option<Micros>,
    /// What it says.
    pub item: String,
}

/// What a fetch of a turn asks for.
#[derive(Clone, Debug, Default)]
pub struct TurnClaim {
    /// How long the instance is leased.
    pub lease: Duration,
    /// How long to wait when there is nothing.
    pub wait: Duration,
    /// Only instances whose pinned version is in this range (both ends included), or that have none.
    pub pinned: Option<(i64, i64)>,
}

/// A part of a history that the caller has already: only what follows it needs to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The instance.
    pub instance: String,
    /// Which incarnation of it.
    pub born: i64,
    /// Which execution.
    pub execution: i64,
    /// The last event that is known.
    pub last: i64,
}

/// The right to one turn of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TurnToken {
    /// The instance.
    pub instance: String,
    /// Proves that the lease is still yours.
    pub token: i64,
    /// Whether the instance has values, which the end of an execution has to look after.
    pub values: bool,
}

/// A leased turn: an instance, the messages it was sent, and what it did so far.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Ends the turn.
    pub token: TurnToken,
    /// Tells this incarnation of the instance from an earlier one that was deleted.
    pub born: i64,
    /// How many turns it has had.
    pub turns: i64,
    /// The current execution.
    pub execution: i64,
    /// The orchestration's name; none before the first acknowledged turn.
    pub name: Option<String>,
    /// The orchestration's version.
    pub version: Option<String>,
    /// The messages of this turn, oldest first.
    pub messages: Vec<TurnMessage>,
    /// The events of the current execution that follow event `known`, in order.
    pub history: Vec<HistoryEvent>,
    /// The last event that was not sent because a caller knows it; 0: the history is whole.
    pub known: i64,
    /// What finished executions left behind.
    pub values: Vec<KeptValue>,
    /// How long the look that found it took.
    pub took: Duration,
}

/// A message of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnMessage {
    /// Its place.
    pub id: i64,
    /// How often it was fetched, this time included.
    pub attempts: i64,
    /// What it says.
    pub item: String,
}

/// One event of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEvent {
    /// Its number, given by its writer.
    pub id: i64,
    /// What happened.
    pub data: String,
}

/// A value of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptValue {
    /// Its key.
    pub key: String,
    /// The value.
    pub value: String,
    /// When it was set, in its writer's unit.
    pub updated_at: i64,
}

/// What a turn did to its instance's values, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueChange {
    /// Sets a value.
    Set {
        /// Its key.
        key: String,
        /// The value.
        value: String,
        /// When, in the writer's unit.
        at: i64,
    },
    /// Removes a value.
    Remove {
        /// Its key.
        key: String,
    },
    /// Removes all values.
    Clear,
}

/// An activity to be carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewWork {
    /// Who asked for it, if it can be cancelled.
    pub activity: Option<Activity>,
    /// The session it belongs to.
    pub session: Option<String>,
    /// Which workers may take it.
    pub tag: Option<String>,
    /// What is to be done.
    pub item: String,
}

/// An activity of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Activity {
    /// The instance.
    pub instance: String,
    /// The execution that scheduled it.
    pub execution: i64,
    /// Its number there.
    pub id: i64,
}

/// Everything that ends a turn, committed together.
#[derive(Clone, Debug, Default)]
pub struct TurnAck {
    /// The execution that the events belong to.
    pub execution: i64,
    /// The orchestration's name and version.
    pub named: Option<(String, String)>,
    /// The instance that started this one; kept from the first naming on.
    pub parent: Option<String>,
    /// The execution's status; none leaves it as it is.
    pub status: Option<String>,
    /// The execution's output, with a status.
    pub output: Option<String>,
    /// The version that the execution is pinned to.
    pub pinned: Option<i64>,
    /// The instance's custom status: none leaves it, some none clears it.
    pub custom_status: Option<Option<String>>,
    /// New events. One that is already there fails the whole acknowledgement.
    pub events: Vec<HistoryEvent>,
    /// New activities.
    pub work: Vec<NewWork>,
    /// Activities that nobody waits for any more, whether leased or not, those of this turn included.
    pub cancelled: Vec<Activity>,
    /// New messages, for this instance or others.
    pub messages: Vec<NewTurnMessage>,
    /// Changes to the instance's values.
    pub values: Vec<ValueChange>,
}

/// What became of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acked {
    /// Committed now: the instance's incarnation, and how many turns it has had.
    Done {
        /// The incarnation.
        born: i64,
        /// How many turns.
        turns: i64,
    },
    /// Committed before: this is a repeat.
    Already,
    /// The lease is not yours, and nothing was changed.
    Lost,
}

/// What a fetch of an activity asks for.
#[derive(Clone, Debug, Default)]
pub struct WorkClaim {
    /// How long the activity is leased.
    pub lease: Duration,
    /// How long to wait when there is nothing.
    pub wait: Duration,
    /// Who owns the sessions of these activities, and for how long; none: only activities without a session.
    pub session: Option<(String, Duration)>,
    /// Which activities.
    pub filter: WorkFilter,
}

/// Which activities a worker takes, by their tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkFilter {
    /// All of them.
    pub any: bool,
    /// Those without a tag.
    pub untagged: bool,
    /// Those with one of these tags; at most [`WorkFilter::TAGS`].
    pub tags: Vec<String>,
}

impl WorkFilter {
    /// How many tags a filter can name.
    pub const TAGS: usize = 5;

    pub(crate) fn accepts(&self, tag: Option<&str>) -> bool {
        self.any || tag.map_or(self.untagged, |tag| self.tags.iter().any(|known| known == tag))
    }
}

/// The right to carry out an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkToken {
    /// The activity's place in line.
    pub id: i64,
    /// Proves that the lease is still yours.
    pub token: i64,
    /// When the fetch of the activity claimed its session; none: it has no session, or its owner held it before.
    pub claimed: Option<Micros>,
}

/// A leased activity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Ends it.
    pub token: WorkToken,
    /// How often it was fetched, this time included.
    pub attempts: i64,
    /// What is to be done.
    pub item: String,
    /// Whether it belongs to a session.
    pub in_session: bool,
    /// The incarnation of its instance, and how many turns that had had when the activity was leased.
    pub seen: Option<(i64, i64)>,
    /// How long the look that found it took.
    pub took: Duration,
}

/// A history, or what is new in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The instance's incarnation.
    pub born: i64,
    /// The execution.
    pub execution: i64,
    /// Its events in order; where the caller said what it knows, those that follow.
    pub events: Vec<HistoryEvent>,
    /// The instance's custom status and its version, if there ever was one.
    pub status: Option<(Option<String>, i64)>,
}

/// What is known about an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceInfo {
    /// Its id.
    pub id: String,
    /// The orchestration's name.
    pub name: String,
    /// The orchestration's version.
    pub version: String,
    /// The current execution.
    pub execution: i64,
    /// The current execution's status.
    pub status: String,
    /// The current execution's output.
    pub output: Option<String>,
    /// When it first ran.
    pub created_at: Micros,
    /// When it last ran.
    pub updated_at: Micros,
    /// The instance that started it.
    pub parent: Option<String>,
}

/// What is known about an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutionInfo {
    /// Its number.
    pub id: i64,
    /// Its status.
    pub status: String,
    /// Its output.
    pub output: Option<String>,
    /// When it began.
    pub started_at: Micros,
    /// When it ended.
    pub completed_at: Option<Micros>,
    /// How many events it has.
    pub events: i64,
}

/// Sizes of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceStats {
    /// Events of the current execution.
    pub events: i64,
    /// Their bytes.
    pub bytes: i64,
    /// The first of them.
    pub first: Option<String>,
    /// Values that the instance has.
    pub keys: i64,
    /// Their bytes.
    pub value_bytes: i64,
}

/// Instances, executions and events of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceCensus {
    /// Instances.
    pub instances: i64,
    /// Executions.
    pub executions: i64,
    /// Events.
    pub events: i64,
    /// Instances whose current execution runs.
    pub running: i64,
    /// Instances that completed.
    pub completed: i64,
    /// Instances that failed.
    pub failed: i64,
}

/// What a deletion or a pruning took away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Instances.
    pub instances: i64,
    /// Executions.
    pub executions: i64,
    /// Events.
    pub events: i64,
    /// Messages and activities.
    pub messages: i64,
}

impl std::ops::AddAssign for Removed {
    fn add_assign(&mut self, other: Self) {
        self.instances += other.instances;
        self.executions += other.executions;
        self.events += other.events;
        self.messages += other.messages;
    }
}

/// Which finished executions to prune; never the current one, never one that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prune {
    /// Only those that ended before.
    pub completed_before: Option<Micros>,
    /// All but so many of the latest.
    pub keep: Option<i64>,
}

/// How far a copy, or its verification, has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyProgress {
    /// Instances that are done, those of earlier runs included.
    pub instances_done: u64,
    /// Instances of the source.
    pub instances_total: u64,
    /// Their events.
    pub events_done: u64,
    /// Events of the source.
    pub events_total: u64,
}

/// What a copy has brought over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// Instances, those included that were never started.
    pub instances: u64,
    /// Executions.
    pub executions: u64,
    /// Events.
    pub events: u64,
    /// Messages that wait for instances.
    pub messages: u64,
    /// Activities that wait for workers.
    pub activities: u64,
    /// Values of instances, those included that the running execution removed.
    pub values: u64,
    /// Sessions.
    pub sessions: u64,
    /// Instances that were there from an earlier run.
    pub skipped: u64,
}
