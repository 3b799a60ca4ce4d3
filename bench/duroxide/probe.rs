//! Passes everything on and notes how long each orchestration took: from the return of its start to that of the
//! acknowledgement that ended it. duroxide's own figure is the inverse of its throughput.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duroxide::providers::*;
use duroxide::{Event, SystemStats};

type Answer<T> = Result<T, ProviderError>;

pub(crate) struct Probe {
    inner: Arc<dyn Provider>,
    started: Mutex<HashMap<String, Instant>>,
    turns: Mutex<HashMap<String, String>>,
    latencies: Mutex<Vec<Duration>>,
}

impl Probe {
    pub(crate) fn new(inner: Arc<dyn Provider>) -> Self {
        Probe { inner, started: Mutex::default(), turns: Mutex::default(), latencies: Mutex::default() }
    }

    /// Sorted.
    pub(crate) fn latencies(&self) -> Vec<Duration> {
        let mut latencies = self.latencies.lock().expect("no panic").clone();
        latencies.sort_unstable();
        latencies
    }
}

#[async_trait::async_trait]
impl Provider for Probe {
    async fn fetch_orchestration_item(
        &self,
        lock: Duration,
        poll: Duration,
        filter: Option<&DispatcherCapabilityFilter>,
    ) -> Answer<Option<(OrchestrationItem, String, u32)>> {
        let fetched = self.inner.fetch_orchestration_item(lock, poll, filter).await?;
        if let Some((item, token, _)) = &fetched {
            self.turns.lock().expect("no panic").insert(token.clone(), item.instance.clone());
        }
        Ok(fetched)
    }
    async fn ack_orchestration_item(
        &self,
        token: &str,
        execution: u64,
        delta: Vec<Event>,
        work: Vec<WorkItem>,
        messages: Vec<WorkItem>,
        metadata: ExecutionMetadata,
        cancelled: Vec<ScheduledActivityIdentifier>,
    ) -> Answer<()> {
        let ended = metadata.status.is_some();
        self.inner.ack_orchestration_item(token, execution, delta, work, messages, metadata, cancelled).await?;
        let instance = self.turns.lock().expect("no panic").remove(token);
        if let Some(began) =
            instance.filter(|_| ended).and_then(|id| self.started.lock().expect("no panic").remove(&id))
        {
            self.latencies.lock().expect("no panic").push(began.elapsed());
        }
        Ok(())
    }
    async fn enqueue_for_orchestrator(&self, item: WorkItem, delay: Option<Duration>) -> Answer<()> {
        let start = match &item {
            WorkItem::StartOrchestration { instance, .. } => Some(instance.clone()),
            _ => None,
        };
        if let Some(instance) = start {
            self.started.lock().expect("no panic").insert(instance, Instant::now());
        }
        self.inner.enqueue_for_orchestrator(item, delay).await
    }
    async fn abandon_orchestration_item(&self, token: &str, delay: Option<Duration>, ignore: bool) -> Answer<()> {
        self.inner.abandon_orchestration_item(token, delay, ignore).await
    }
    async fn read(&self, instance: &str) -> Answer<Vec<Event>> {
        self.inner.read(instance).await
    }
    async fn read_with_execution(&self, instance: &str, execution: u64) -> Answer<Vec<Event>> {
        self.inner.read_with_execution(instance, execution).await
    }
    async fn append_with_execution(&self, instance: &str, execution: u64, events: Vec<Event>) -> Answer<()> {
        self.inner.append_with_execution(instance, execution, events).await
    }
    async fn enqueue_for_worker(&self, item: WorkItem) -> Answer<()> {
        self.inner.enqueue_for_worker(item).await
    }
    async fn fetch_work_item(
        &self,
        lock: Duration,
        poll: Duration,
        session: Option<&SessionFetchConfig>,
        tags: &TagFilter,
    ) -> Answer<Option<(WorkItem, String, u32)>> {
        self.inner.fetch_work_item(lock, poll, session, tags).await
    }
    async fn ack_work_item(&self, token: &str, completion: Option<WorkItem>) -> Answer<()> {
        self.inner.ack_work_item(token, completion).await
    }
    async fn renew_work_item_lock(&self, token: &str, extend: Duration) -> Answer<()> {
        self.inner.renew_work_item_lock(token, extend).await
    }
    async fn renew_session_lock(&self, owners: &[&str], extend: Duration, idle: Duration) -> Answer<usize> {
        self.inner.renew_session_lock(owners, extend, idle).await
    }
    async fn cleanup_orphaned_sessions(&self, idle: Duration) -> Answer<usize> {
        self.inner.cleanup_orphaned_sessions(idle).await
    }
    async fn abandon_work_item(&self, token: &str, delay: Option<Duration>, ignore: bool) -> Answer<()> {
        self.inner.abandon_work_item(token, delay, ignore).await
    }
    async fn renew_orchestration_item_lock(&self, token: &str, extend: Duration) -> Answer<()> {
        self.inner.renew_orchestration_item_lock(token, extend).await
    }
    fn as_management_capability(&self) -> Option<&dyn ProviderAdmin> {
        self.inner.as_management_capability()
    }
    async fn get_custom_status(&self, instance: &str, seen: u64) -> Answer<Option<(Option<String>, u64)>> {
        self.inner.get_custom_status(instance, seen).await
    }
    async fn get_kv_value(&self, instance: &str, key: &str) -> Answer<Option<String>> {
        self.inner.get_kv_value(instance, key).await
    }
    async fn get_kv_all_values(&self, instance: &str) -> Answer<HashMap<String, String>> {
        self.inner.get_kv_all_values(instance).await
    }
    async fn get_instance_stats(&self, instance: &str) -> Answer<Option<SystemStats>> {
        self.inner.get_instance_stats(instance).await
    }
}
