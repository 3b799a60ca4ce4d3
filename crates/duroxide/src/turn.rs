//! Turns: what a fetch makes of the kernel's answer, and how an acknowledgement outlives an outage.

use std::time::Duration;

use duroxide::providers::{DispatcherCapabilityFilter, KvEntry, OrchestrationItem, WorkItem};
use duroxide::{Event, EventKind};
use tenure_store::text::original;
use tenure_store::{Acked, Error, KeptValue, Kind, Known, Result, Turn, TurnAck, TurnClaim, TurnToken};
use tokio::time::Instant;

use crate::cache::id_of;
use crate::convert::{packed, unsigned};
use crate::observe::took;
use crate::provider::TenureProvider;
use crate::repeat::{after, repeat};
use crate::token;

/// How long a fetch is repeated before duroxide is told that the database is away.
const FETCH: Duration = Duration::from_millis(500);

impl TenureProvider {
    pub(crate) async fn fetch_turn(
        &self,
        lease: Duration,
        wait: Duration,
        filter: Option<&DispatcherCapabilityFilter>,
    ) -> Result<Option<(OrchestrationItem, String, u32)>> {
        let pinned = match filter {
            None => None,
            // Only the first range counts, as duroxide's own suite wants it.
            Some(filter) => match filter.supported_duroxide_versions.first() {
                None => return Ok(None),
                Some(range) => Some((packed(&range.min), packed(&range.max))),
            },
        };
        let until = after(Instant::now(), wait);
        loop {
            let wait = until.saturating_duration_since(Instant::now());
            let claim = TurnClaim { lease, wait, pinned };
            let fetch = || async {
                let cache = self.cache.clone();
                self.store.turn_fetch(&claim, move || cache.named()).await
            };
            let (turn, _) = repeat("fetch", Instant::now() + FETCH, fetch).await?;
            let Some(turn) = turn else { return Ok(None) };
            took("fetch", turn.took);
            let began = Instant::now() - turn.took;
            if let Some(item) = self.item(turn, began, lease).await? {
                return Ok(Some(item));
            }
        }
    }

    /// The turn in duroxide's words; none when nobody waits for its messages.
    async fn item(
        &self,
        turn: Turn,
        began: Instant,
        lease: Duration,
    ) -> Result<Option<(OrchestrationItem, String, u32)>> {
        let instance = original(turn.token.instance.clone());
        let attempts = turn.messages.iter().map(|message| message.attempts).max().unwrap_or(0);
        let (messages, unread) = read_messages(&turn);
        let history = self.whole_history(&turn).await?;
        let (history, error) = match (history, unread) {
            (Ok(history), None) => (history, None),
            (Err(error), _) | (_, Some(error)) => (Vec::new(), Some(error)),
        };
        let version = |version: Option<String>| version.map_or_else(unknown, original);
        let named = turn.name.clone().map(|name| (original(name), version(turn.version.clone())));
        let named = match named.or_else(|| started(&history)).or_else(|| starting(&messages)) {
            Some(named) => named,
            None if error.is_some() => (unknown(), unknown()),
            None => {
                self.put_aside(&turn, &messages).await?;
                return Ok(None);
            }
        };
        self.turns.take(turn.token.token, began, lease, history.last().map_or(0, id_of));
        let token = token::of_turn(&turn.token);
        let item = OrchestrationItem {
            instance,
            orchestration_name: named.0,
            execution_id: unsigned(turn.execution),
            version: named.1,
            history,
            messages,
            history_error: error,
            kv_snapshot: turn.values.into_iter().map(value).collect(),
        };
        Ok(Some((item, token, u32::try_from(attempts).unwrap_or(u32::MAX))))
    }

    /// The history of a turn, of which the database may have left out what was kept here when it was asked.
    async fn whole_history(&self, turn: &Turn) -> Result<Result<Vec<Event>, String>> {
        let id = &turn.token.instance;
        let which = (turn.born, turn.execution, Some(turn.turns));
        let part = self.cache.part(id);
        let has =
            |known: &Known| (known.born, known.execution) == (turn.born, turn.execution) && known.last >= turn.known;
        if turn.known == 0 || part.as_ref().is_some_and(|part| has(&part.known)) {
            return Ok(self.cache.complete(id, which, part, &turn.history));
        }
        // It was forgotten meanwhile, to make room.
        let history = self.store.history_read(id, Some(turn.execution), None).await?;
        let events = history.map_or_else(Vec::new, |history| history.events);
        Ok(self.cache.complete(id, which, None, &events))
    }

    /// Ends the turn of an instance that was never started. Messages for its queues are dropped, as duroxide wants it. Others
    /// may have overtaken the start: they are parked until it comes.
    async fn put_aside(&self, turn: &Turn, messages: &[WorkItem]) -> Result<()> {
        let instance = &turn.token.instance;
        let dropped = if messages.iter().all(|item| matches!(item, WorkItem::QueueMessage { .. })) {
            self.store.turn_drop(&turn.token).await?;
            messages.len()
        } else {
            self.store.turn_park(&turn.token).await?
        };
        if dropped > 0 {
            tracing::warn!(instance, messages = dropped, "messages for an instance that was never started: dropped");
        }
        Ok(())
    }

    /// Acknowledges a turn, again and again while its lease lasts if the database is away.
    pub(crate) async fn ack_turn(&self, token: &TurnToken, ack: TurnAck, delta: Vec<Event>) -> Result<()> {
        if self.turns.is_given_up(token.token) {
            return Err(gone("an acknowledgement under this lock was given up while the database was away"));
        }
        let size = ack.events.iter().map(|event| event.data.len()).sum();
        let execution = ack.execution;
        let acknowledge = || async { self.store.turn_ack(token, ack.clone()).await };
        let acked = repeat("ack", self.turns.until(token.token), acknowledge).await;
        self.told.forget(&token.instance);
        match acked {
            Ok((Acked::Done { born, turns }, _)) => {
                if let Some(last) = self.turns.last(token.token) {
                    self.cache.append(&token.instance, (born, execution, turns), last, delta, size);
                }
                self.turns.let_go(token.token);
                Ok(())
            }
            // An earlier try of this call was committed and its answer lost. Without such a try, another call was.
            Ok((Acked::Already, true)) => {
                self.turns.let_go(token.token);
                Ok(())
            }
            Ok((Acked::Already | Acked::Lost, _)) => {
                Err(gone("the lock_token is unknown, was used, or its lease has run out"))
            }
            // Whatever is not about the turn itself is weather, a changed password too: it must not end the orchestration.
            Err(error) if !matches!(error.kind(), Kind::AlreadyExists | Kind::InvalidInput) => {
                self.turns.give_up(token.token);
                tracing::warn!(instance = %token.instance, %error, "a turn could not be acknowledged while its lease lasted: it will be run again");
                Err(gone("it could not be acknowledged while its lease lasted, so the turn will be run again"))
            }
            Err(error) => Err(error),
        }
    }
}

fn gone(message: &str) -> Error {
    Error::new(Kind::InvalidState, format!("Invalid lock token: {message}"))
}

/// A value in duroxide's words.
fn value(kept: KeptValue) -> (String, KvEntry) {
    let entry = KvEntry { value: original(kept.value), last_updated_at_ms: unsigned(kept.updated_at) };
    (original(kept.key), entry)
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// The messages of a turn; if one cannot be read, why: then duroxide counts attempts until it ends the instance.
fn read_messages(turn: &Turn) -> (Vec<WorkItem>, Option<String>) {
    let mut unread = None;
    let mut read = Vec::with_capacity(turn.messages.len());
    for message in &turn.messages {
        match serde_json::from_str(&message.item) {
            Ok(item) => read.push(item),
            Err(error) => unread = Some(format!("message {} cannot be read: {error}", message.id)),
        }
    }
    (read, unread)
}

/// Name and version from the history of an instance that has no name of its own.
fn started(history: &[Event]) -> Option<(String, String)> {
    history.iter().find_map(|event| match &event.kind {
        EventKind::OrchestrationStarted { name, version, .. } => Some((name.clone(), version.clone())),
        _ => None,
    })
}

/// Name and version from the message that starts an instance.
fn starting(messages: &[WorkItem]) -> Option<(String, String)> {
    messages.iter().find_map(|item| match item {
        WorkItem::StartOrchestration { orchestration, version, .. }
        | WorkItem::ContinueAsNew { orchestration, version, .. } => {
            Some((orchestration.clone(), version.clone().unwrap_or_else(unknown)))
        }
        _ => None,
    })
}
