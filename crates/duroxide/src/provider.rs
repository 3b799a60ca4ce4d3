//! The provider: duroxide's storage trait, each method one call of the kernel.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use duroxide::providers::{
    DispatcherCapabilityFilter, ExecutionMetadata, OrchestrationItem, Provider, ProviderAdmin, ProviderError,
    ScheduledActivityIdentifier, SessionFetchConfig, TagFilter, WorkItem,
};
use duroxide::{Event, EventKind, SystemStats};
use rand::Rng as _;
use tenure_store::text::{original, stored};
use tenure_store::{Error, Kind, Result, Store, Work, WorkClaim};
use tokio::time::Instant;

use crate::cache::{Cache, parse};
use crate::config::{MigrationPolicy, ProviderConfig};
use crate::convert;
use crate::held::Held;
use crate::observe::{failed, observe, took};
use crate::repeat::{PATIENCE, after, repeat};
use crate::token;
use crate::told::Told;

/// Keeps duroxide's orchestrations in PostgreSQL or SQLite.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure_store::Result<()> {
/// use duroxide::providers::Provider;
/// use tenure_duroxide::TenureProvider;
///
/// let provider = TenureProvider::new("sqlite::memory:").await?;
/// assert_eq!(provider.name(), "tenure-sqlite");
/// # Ok(())
/// # }
/// ```
pub struct TenureProvider {
    pub(crate) store: Store,
    pub(crate) cache: Arc<Cache>,
    pub(crate) turns: Held,
    activities: Held,
    pub(crate) told: Told,
}

/// [`TenureProvider`] under the name that programs for PostgreSQL know.
pub type PostgresProvider = TenureProvider;

/// How long an activity that cannot be read is left alone: it must not stand in the way of the others.
const UNREADABLE: Duration = Duration::from_secs(60);

impl TenureProvider {
    /// Connects and brings the tables up to date.
    ///
    /// # Errors
    /// When the DSN cannot be read, the database cannot be reached, or its tables were made by a newer version.
    pub async fn new(dsn: &str) -> Result<Self> {
        Self::new_with_config(ProviderConfig::new(dsn)).await
    }

    /// The same with the tables in a PostgreSQL schema of one's own, created when missing.
    ///
    /// # Errors
    /// As [`new`](TenureProvider::new).
    pub async fn new_with_schema(dsn: &str, schema: &str) -> Result<Self> {
        Self::new_with_config(ProviderConfig { schema: Some(schema.to_owned()), ..ProviderConfig::new(dsn) }).await
    }

    /// The same with all settings.
    ///
    /// # Errors
    /// As [`new`](TenureProvider::new).
    pub async fn new_with_config(config: ProviderConfig) -> Result<Self> {
        let store = Store::connect(&config.full_dsn()?).await?;
        match config.migrations {
            MigrationPolicy::Apply => store.install().await?,
            MigrationPolicy::VerifyOnly => store.verify().await?,
        }
        let cache = Arc::new(Cache::new(config.cache_bytes));
        Ok(TenureProvider { store, cache, turns: Held::default(), activities: Held::default(), told: Told::default() })
    }

    /// The store below, for its queues.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Repeats a call that holds no lease.
    pub(crate) async fn patiently<T, F: Future<Output = Result<T>> + Send>(
        &self,
        operation: &'static str,
        instance: &str,
        act: impl FnMut() -> F + Send,
    ) -> Result<T, ProviderError> {
        let until = Instant::now() + PATIENCE;
        observe(operation, instance, async { Ok(repeat(operation, until, act).await?.0) }).await
    }

    /// The activity in duroxide's words; one that cannot be read is put aside, and never dropped.
    async fn readable(&self, work: Work, lease: Duration, began: Instant) -> Result<Option<(WorkItem, String, u32)>> {
        took("dequeue_worker", work.took);
        match serde_json::from_str(&work.item) {
            Ok(item) => {
                if let (WorkItem::ActivityExecute { instance, .. }, Some(seen)) = (&item, work.seen) {
                    let id = stored(instance);
                    self.told.history(&id, self.cache.after_turn(&id, seen), began);
                }
                self.activities.take(work.token.token, began, lease, 0);
                let attempts = u32::try_from(work.attempts).unwrap_or(u32::MAX);
                Ok(Some((item, token::of_work(work.token), attempts)))
            }
            Err(error) => {
                tracing::error!(id = work.token.id, %error, "an activity cannot be read: it is put aside for a minute");
                self.store.work_abandon(work.token, Some(UNREADABLE), false).await?;
                Ok(None)
            }
        }
    }
}

fn lost(what: &str) -> Error {
    Error::new(Kind::InvalidState, format!("{what}: the lock_token is unknown, was used, or its lease has run out"))
}

fn nonce() -> i64 {
    rand::rng().random_range(1..=i64::MAX)
}

#[async_trait]
impl Provider for TenureProvider {
    fn name(&self) -> &str {
        match self.store.backend() {
            tenure_store::Backend::Postgres => "tenure-postgres",
            _ => "tenure-sqlite",
        }
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    async fn fetch_orchestration_item(
        &self,
        lock_timeout: Duration,
        poll_timeout: Duration,
        filter: Option<&DispatcherCapabilityFilter>,
    ) -> Result<Option<(OrchestrationItem, String, u32)>, ProviderError> {
        self.fetch_turn(lock_timeout, poll_timeout, filter).await.map_err(|error| failed("fetch", &error))
    }

    async fn ack_orchestration_item(
        &self,
        lock_token: &str,
        execution_id: u64,
        history_delta: Vec<Event>,
        worker_items: Vec<WorkItem>,
        orchestrator_items: Vec<WorkItem>,
        metadata: ExecutionMetadata,
        cancelled_activities: Vec<ScheduledActivityIdentifier>,
    ) -> Result<(), ProviderError> {
        let token = token::turn("ack", lock_token)?;
        let act = async {
            let ack = convert::ack(
                execution_id,
                &history_delta,
                &worker_items,
                &orchestrator_items,
                metadata,
                &cancelled_activities,
            )?;
            self.ack_turn(&token, ack, history_delta).await
        };
        observe("ack", &token.instance, act).await
    }

    async fn abandon_orchestration_item(
        &self,
        lock_token: &str,
        delay: Option<Duration>,
        ignore_attempt: bool,
    ) -> Result<(), ProviderError> {
        let token = token::turn("abandon", lock_token)?;
        let act = async {
            let until = self.turns.until(token.token);
            let abandon = || async { self.store.turn_abandon(&token, delay, ignore_attempt).await };
            let (done, ambiguous) = repeat("abandon", until, abandon).await?;
            self.turns.let_go(token.token);
            if done || ambiguous { Ok(()) } else { Err(lost("Invalid lock token")) }
        };
        observe("abandon", &token.instance, act).await
    }

    async fn read(&self, instance: &str) -> Result<Vec<Event>, ProviderError> {
        let id = stored(instance);
        if let Some(events) = self.told.take_history(&id) {
            return Ok(Vec::clone(&events));
        }
        let history = || async {
            let (part, began) = (self.cache.part(&id), Instant::now());
            let history = self.store.history_read(&id, None, part.as_ref().map(|part| &part.known)).await?;
            let Some(history) = history else { return Ok(Vec::new()) };
            self.told.status(&id, history.status, began);
            let which = (history.born, history.execution, None);
            self.cache.complete(&id, which, part, &history.events).map_err(|error| unreadable(instance, &error))
        };
        self.patiently("read", instance, history).await
    }

    async fn read_with_execution(&self, instance: &str, execution_id: u64) -> Result<Vec<Event>, ProviderError> {
        let (id, execution) = (stored(instance), convert::int(execution_id));
        let history = || async {
            let history = self.store.history_read(&id, Some(execution), None).await?;
            parse(&history.map_or_else(Vec::new, |history| history.events))
                .map_err(|error| unreadable(instance, &error))
        };
        self.patiently("read", instance, history).await
    }

    async fn append_with_execution(
        &self,
        instance: &str,
        execution_id: u64,
        new_events: Vec<Event>,
    ) -> Result<(), ProviderError> {
        let append = async {
            let events = convert::events(&new_events)?;
            self.store.history_append(&stored(instance), convert::int(execution_id), events).await
        };
        observe("append", instance, append).await
    }

    async fn enqueue_for_worker(&self, item: WorkItem) -> Result<(), ProviderError> {
        let nonce = nonce();
        let enqueue = || async { self.store.work_enqueue(convert::work(&item)?, nonce).await };
        self.patiently("enqueue", "", enqueue).await
    }

    async fn fetch_work_item(
        &self,
        lock_timeout: Duration,
        poll_timeout: Duration,
        session: Option<&SessionFetchConfig>,
        tag_filter: &TagFilter,
    ) -> Result<Option<(WorkItem, String, u32)>, ProviderError> {
        let Some(filter) = convert::filter(tag_filter) else { return Ok(None) };
        let until = after(Instant::now(), poll_timeout);
        let session = session.map(|session| (stored(&session.owner_id).into_owned(), session.lock_timeout));
        let mut claim = WorkClaim { lease: lock_timeout, wait: poll_timeout, session, filter };
        loop {
            let fetched = async {
                let Some(work) = self.store.work_fetch(&claim).await? else { return Ok(None) };
                let (token, began) = (work.token.token, Instant::now() - work.took);
                let readable = self.readable(work, lock_timeout, began).await?;
                self.activities.claimed(token, Arc::new(claim.clone()));
                Ok(Some(readable))
            };
            match fetched.await.map_err(|error: Error| failed("dequeue_worker", &error))? {
                Some(None) => claim.wait = until.saturating_duration_since(Instant::now()),
                found => return Ok(found.flatten()),
            }
        }
    }

    async fn ack_work_item(&self, token: &str, completion: Option<WorkItem>) -> Result<(), ProviderError> {
        let token = token::work("ack_worker", token)?;
        let instance = match &completion {
            None => None,
            Some(WorkItem::ActivityCompleted { instance, .. } | WorkItem::ActivityFailed { instance, .. }) => {
                Some(stored(instance).into_owned())
            }
            Some(_) => {
                let message = "an activity ends with ActivityCompleted or ActivityFailed, and with nothing else";
                return Err(ProviderError::permanent("ack_worker", message));
            }
        };
        let act = async {
            let completion = match (&instance, &completion) {
                (Some(instance), Some(completion)) => Some((instance.clone(), convert::json(completion)?)),
                _ => None,
            };
            let next = self.activities.claim(token.token);
            let ack = || async { self.store.work_ack(token, completion.clone(), next.clone()).await };
            let (done, ambiguous) = repeat("ack_worker", self.activities.until(token.token), ack).await?;
            self.activities.let_go(token.token);
            if done || ambiguous { Ok(()) } else { Err(lost("the activity was cancelled or its lock expired")) }
        };
        observe("ack_worker", instance.as_deref().unwrap_or_default(), act).await
    }

    async fn renew_work_item_lock(&self, token: &str, extend_for: Duration) -> Result<(), ProviderError> {
        let token = token::work("renew_worker", token)?;
        let act = async {
            let renew = || async {
                let began = Instant::now();
                Ok((self.store.work_renew(token, extend_for).await?, began))
            };
            let ((kept, began), _) = repeat("renew_worker", self.activities.until(token.token), renew).await?;
            self.activities.renew(token.token, began, extend_for);
            if kept { Ok(()) } else { Err(lost("the activity was cancelled or its lock expired")) }
        };
        observe("renew_worker", "", act).await
    }

    async fn renew_session_lock(
        &self,
        owner_ids: &[&str],
        extend_for: Duration,
        idle_timeout: Duration,
    ) -> Result<usize, ProviderError> {
        let owners: Vec<String> = owner_ids.iter().map(|owner| stored(owner).into_owned()).collect();
        let renew = || async { self.store.session_renew(owners.clone(), extend_for, idle_timeout).await };
        let act = async { Ok(repeat("sessions", after(Instant::now(), extend_for / 2), renew).await?.0) };
        observe("sessions", "", act).await
    }

    async fn cleanup_orphaned_sessions(&self, _idle_timeout: Duration) -> Result<usize, ProviderError> {
        observe("sessions", "", self.store.session_prune()).await
    }

    async fn abandon_work_item(
        &self,
        token: &str,
        delay: Option<Duration>,
        ignore_attempt: bool,
    ) -> Result<(), ProviderError> {
        let token = token::work("abandon_worker", token)?;
        let act = async {
            let abandon = || async { self.store.work_abandon(token, delay, ignore_attempt).await };
            let (done, ambiguous) = repeat("abandon_worker", self.activities.until(token.token), abandon).await?;
            self.activities.let_go(token.token);
            if done || ambiguous { Ok(()) } else { Err(lost("Invalid lock token")) }
        };
        observe("abandon_worker", "", act).await
    }

    async fn renew_orchestration_item_lock(&self, token: &str, extend_for: Duration) -> Result<(), ProviderError> {
        let token = token::turn("renew", token)?;
        let act = async {
            let renew = || async {
                let began = Instant::now();
                Ok((self.store.turn_renew(&token, extend_for).await?, began))
            };
            let ((kept, began), _) = repeat("renew", self.turns.until(token.token), renew).await?;
            self.turns.renew(token.token, began, extend_for);
            if kept { Ok(()) } else { Err(lost("Invalid lock token")) }
        };
        observe("renew", &token.instance, act).await
    }

    async fn enqueue_for_orchestrator(&self, item: WorkItem, delay: Option<Duration>) -> Result<(), ProviderError> {
        let nonce = nonce();
        let instance = convert::recipient(&item).unwrap_or_default();
        let enqueue = || async {
            let message = convert::message(&item)?;
            self.store.turn_enqueue(&message.instance, message.item, delay.unwrap_or_default(), nonce).await
        };
        self.patiently("enqueue", instance, enqueue).await
    }

    fn as_management_capability(&self) -> Option<&dyn ProviderAdmin> {
        Some(self)
    }

    async fn get_custom_status(
        &self,
        instance: &str,
        last_seen_version: u64,
    ) -> Result<Option<(Option<String>, u64)>, ProviderError> {
        let (id, seen) = (stored(instance), convert::int(last_seen_version));
        let status = match self.told.take_status(&id) {
            Some(told) => told.filter(|(_, version)| *version > seen),
            None => {
                let status = || async { self.store.instance_status(&id, seen).await };
                self.patiently("status", instance, status).await?
            }
        };
        Ok(status.map(|(status, version)| (status.map(original), convert::unsigned(version))))
    }

    async fn get_kv_value(&self, instance: &str, key: &str) -> Result<Option<String>, ProviderError> {
        let (id, key) = (stored(instance), stored(key));
        let value = self.patiently("values", instance, || async { self.store.kv_get(&id, &key).await }).await?;
        Ok(value.map(original))
    }

    async fn get_kv_all_values(&self, instance: &str) -> Result<HashMap<String, String>, ProviderError> {
        let id = stored(instance);
        let all = self.patiently("values", instance, || async { self.store.kv_list(&id).await }).await?;
        Ok(all.into_iter().map(|(key, value)| (original(key), original(value))).collect())
    }

    async fn get_instance_stats(&self, instance: &str) -> Result<Option<SystemStats>, ProviderError> {
        let id = stored(instance);
        let stats = || async {
            let Some(stats) = self.store.instance_stats(&id).await? else { return Ok(None) };
            let first = stats.first.map(|first| serde_json::from_str::<Event>(&first)).transpose();
            let first = first.map_err(|error| unreadable(instance, &error.to_string()))?;
            let carried = first.map_or(0, |event| match event.kind {
                EventKind::OrchestrationStarted { carry_forward_events: Some(events), .. } => events.len() as u64,
                _ => 0,
            });
            Ok(Some(SystemStats {
                history_event_count: convert::unsigned(stats.events),
                history_size_bytes: convert::unsigned(stats.bytes),
                queue_pending_count: carried,
                kv_user_key_count: convert::unsigned(stats.keys),
                kv_total_value_bytes: convert::unsigned(stats.value_bytes),
            }))
        };
        self.patiently("admin", instance, stats).await
    }
}

/// A history that does not decode, which is never skipped.
pub(crate) fn unreadable(instance: &str, error: &str) -> Error {
    Error::new(Kind::Corrupt, format!("the history of instance '{instance}' cannot be read: {error}"))
}
