//! duroxide's words into the kernel's.

use duroxide::providers::{ExecutionMetadata, ScheduledActivityIdentifier, TagFilter, WorkItem};
use duroxide::{Event, EventKind};
use semver::Version;
use tenure_store::text::stored;
use tenure_store::{
    Activity, Error, HistoryEvent, Kind, NewTurnMessage, NewWork, Result, TurnAck, ValueChange, WorkFilter,
};

use crate::cache::id_of;

/// A number as the database holds it.
pub(crate) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number as duroxide holds it.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Milliseconds as the kernel counts time.
pub(crate) fn micros(millis: u64) -> i64 {
    int(millis).saturating_mul(1000)
}

/// Microseconds as duroxide counts time.
pub(crate) fn millis(micros: i64) -> u64 {
    unsigned(micros / 1000)
}

/// A version as one number that sorts like it.
pub(crate) fn packed(version: &Version) -> i64 {
    int(version.major * 1_000_000 + version.minor * 1_000 + version.patch)
}

pub(crate) fn json(item: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(item)
        .map_err(|error| Error::new(Kind::InvalidInput, "an item cannot be written as JSON").with_source(error))
}

/// Whose inbox a message belongs into; none for what belongs to workers.
pub(crate) fn recipient(item: &WorkItem) -> Option<&str> {
    match item {
        WorkItem::StartOrchestration { instance, .. }
        | WorkItem::ActivityCompleted { instance, .. }
        | WorkItem::ActivityFailed { instance, .. }
        | WorkItem::TimerFired { instance, .. }
        | WorkItem::ExternalRaised { instance, .. }
        | WorkItem::QueueMessage { instance, .. }
        | WorkItem::CancelInstance { instance, .. }
        | WorkItem::ContinueAsNew { instance, .. } => Some(instance),
        WorkItem::SubOrchCompleted { parent_instance, .. } | WorkItem::SubOrchFailed { parent_instance, .. } => {
            Some(parent_instance)
        }
        WorkItem::ActivityExecute { .. } => None,
        // Features of duroxide that only its own tests switch on add kinds.
        #[allow(unreachable_patterns, reason = "there are none without those features")]
        _ => None,
    }
}

/// A message on its way to an inbox.
pub(crate) fn message(item: &WorkItem) -> Result<NewTurnMessage> {
    let Some(instance) = recipient(item) else {
        return Err(Error::new(Kind::InvalidInput, "an activity cannot be sent to an orchestration"));
    };
    let visible_at = match item {
        WorkItem::TimerFired { fire_at_ms, .. } => Some(micros(*fire_at_ms)),
        _ => None,
    };
    Ok(NewTurnMessage { instance: stored(instance).into_owned(), visible_at, item: json(item)? })
}

/// An activity on its way to a worker.
pub(crate) fn work(item: &WorkItem) -> Result<NewWork> {
    let new = NewWork { item: json(item)?, ..NewWork::default() };
    let WorkItem::ActivityExecute { instance, execution_id, id, session_id, tag, .. } = item else {
        return Ok(new);
    };
    let text = |text: &Option<String>| text.as_deref().map(|text| stored(text).into_owned());
    Ok(NewWork {
        activity: Some(activity(instance, *execution_id, *id)),
        session: text(session_id),
        tag: text(tag),
        ..new
    })
}

fn activity(instance: &str, execution: u64, id: u64) -> Activity {
    Activity { instance: stored(instance).into_owned(), execution: int(execution), id: int(id) }
}

pub(crate) fn events(events: &[Event]) -> Result<Vec<HistoryEvent>> {
    events.iter().map(|event| Ok(HistoryEvent { id: id_of(event), data: json(event)? })).collect()
}

/// Everything that ends a turn.
pub(crate) fn ack(
    execution: u64,
    delta: &[Event],
    worker_items: &[WorkItem],
    orchestrator_items: &[WorkItem],
    metadata: ExecutionMetadata,
    cancelled: &[ScheduledActivityIdentifier],
) -> Result<TurnAck> {
    let text = |text: Option<String>| text.map(|text| stored(&text).into_owned());
    let custom_status = delta.iter().rev().find_map(|event| match &event.kind {
        EventKind::CustomStatusUpdated { status } => Some(text(status.clone())),
        _ => None,
    });
    Ok(TurnAck {
        execution: int(execution),
        named: text(metadata.orchestration_name).zip(text(metadata.orchestration_version)),
        parent: text(metadata.parent_instance_id),
        status: text(metadata.status),
        output: text(metadata.output),
        pinned: metadata.pinned_duroxide_version.as_ref().map(packed),
        custom_status,
        events: events(delta)?,
        work: worker_items.iter().map(work).collect::<Result<_>>()?,
        cancelled: cancelled.iter().map(|one| activity(&one.instance, one.execution_id, one.activity_id)).collect(),
        messages: orchestrator_items.iter().map(message).collect::<Result<_>>()?,
        values: delta.iter().filter_map(value_change).collect(),
    })
}

fn value_change(event: &Event) -> Option<ValueChange> {
    match &event.kind {
        EventKind::KeyValueSet { key, value, last_updated_at_ms } => Some(ValueChange::Set {
            key: stored(key).into_owned(),
            value: stored(value).into_owned(),
            at: int(*last_updated_at_ms),
        }),
        EventKind::KeyValueCleared { key } => Some(ValueChange::Remove { key: stored(key).into_owned() }),
        EventKind::KeyValuesCleared => Some(ValueChange::Clear),
        _ => None,
    }
}

/// Which activities a worker takes; none: no activities at all.
pub(crate) fn filter(filter: &TagFilter) -> Option<WorkFilter> {
    let tags = |tags: &std::collections::HashSet<String>| {
        let mut tags: Vec<String> = tags.iter().map(|tag| stored(tag).into_owned()).collect();
        tags.sort_unstable();
        tags
    };
    match filter {
        TagFilter::None => None,
        TagFilter::Any => Some(WorkFilter { any: true, ..WorkFilter::default() }),
        TagFilter::DefaultOnly => Some(WorkFilter { untagged: true, ..WorkFilter::default() }),
        TagFilter::Tags(set) => Some(WorkFilter { tags: tags(set), ..WorkFilter::default() }),
        TagFilter::DefaultAnd(set) => Some(WorkFilter { untagged: true, tags: tags(set), ..WorkFilter::default() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_the_database_cannot_hold_saturate() {
        assert_eq!((int(u64::MAX), unsigned(-1), micros(u64::MAX)), (i64::MAX, 0, i64::MAX));
    }
}
