//! A store that costs nothing and keeps nothing, with correct long polling: what duroxide and its stress test allow at most.
//! It knows just what the stress tests A to S need.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use duroxide::providers::*;
use duroxide::{Event, SystemStats};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

type Answer<T> = Result<T, ProviderError>;

#[derive(Default)]
struct State {
    history: HashMap<String, Vec<Event>>,
    names: HashMap<String, (String, String)>,
    inboxes: HashMap<String, Vec<WorkItem>>,
    ready: VecDeque<String>,
    queued: HashSet<String>,
    held: HashSet<String>,
    turns: HashMap<String, (String, usize)>,
    work: VecDeque<WorkItem>,
    next: u64,
}

#[derive(Default)]
pub(crate) struct Free {
    state: Mutex<State>,
    turn: Notify,
    work: Notify,
}

fn recipient(item: &WorkItem) -> String {
    match item {
        WorkItem::StartOrchestration { instance, .. }
        | WorkItem::ActivityCompleted { instance, .. }
        | WorkItem::ActivityFailed { instance, .. } => instance.clone(),
        other => panic!("the free store does not know {other:?}"),
    }
}

impl State {
    fn send(&mut self, item: WorkItem) {
        let instance = recipient(&item);
        self.inboxes.entry(instance.clone()).or_default().push(item);
        self.queue(&instance);
    }

    fn queue(&mut self, instance: &str) {
        if !self.held.contains(instance) && self.queued.insert(instance.to_owned()) {
            self.ready.push_back(instance.to_owned());
        }
    }

    fn take_turn(&mut self) -> Option<(OrchestrationItem, String, u32)> {
        let instance = self.ready.pop_front()?;
        self.queued.remove(&instance);
        let messages = self.inboxes.get(&instance).cloned().unwrap_or_default();
        self.next += 1;
        let token = self.next.to_string();
        self.turns.insert(token.clone(), (instance.clone(), messages.len()));
        self.held.insert(instance.clone());
        let start = || match messages.first() {
            Some(WorkItem::StartOrchestration { orchestration, .. }) => (orchestration.clone(), "unknown".to_owned()),
            _ => (String::new(), String::new()),
        };
        let (orchestration_name, version) = self.names.get(&instance).cloned().unwrap_or_else(start);
        let history = self.history.get(&instance).cloned().unwrap_or_default();
        let (execution_id, history_error, kv_snapshot) = (1, None, HashMap::new());
        let item = OrchestrationItem {
            instance,
            orchestration_name,
            execution_id,
            version,
            history,
            messages,
            history_error,
            kv_snapshot,
        };
        Some((item, token, 1))
    }

    fn take_work(&mut self) -> Option<(WorkItem, String, u32)> {
        let item = self.work.pop_front()?;
        self.next += 1;
        Some((item, self.next.to_string(), 1))
    }
}

impl Free {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    async fn wait<T>(&self, bell: &Notify, poll: Duration, take: impl Fn(&mut State) -> Option<T>) -> Option<T> {
        let until = Instant::now() + poll;
        loop {
            let woken = bell.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            if let Some(taken) = take(&mut self.state()) {
                return Some(taken);
            }
            timeout_at(until, woken).await.ok()?;
        }
    }
}

#[async_trait::async_trait]
impl Provider for Free {
    async fn fetch_orchestration_item(
        &self,
        _lock: Duration,
        poll: Duration,
        _filter: Option<&DispatcherCapabilityFilter>,
    ) -> Answer<Option<(OrchestrationItem, String, u32)>> {
        Ok(self.wait(&self.turn, poll, State::take_turn).await)
    }

    async fn ack_orchestration_item(
        &self,
        token: &str,
        _execution: u64,
        delta: Vec<Event>,
        work: Vec<WorkItem>,
        messages: Vec<WorkItem>,
        metadata: ExecutionMetadata,
        _cancelled: Vec<ScheduledActivityIdentifier>,
    ) -> Answer<()> {
        let count = work.len();
        let more = {
            let mut state = self.state();
            let turn = state.turns.remove(token);
            let (instance, taken) = turn.ok_or_else(|| ProviderError::permanent("ack", "unknown lock_token"))?;
            state.held.remove(&instance);
            if let Some(named) = metadata.orchestration_name.zip(metadata.orchestration_version) {
                state.names.insert(instance.clone(), named);
            }
            state.history.entry(instance.clone()).or_default().extend(delta);
            let left = state.inboxes.get_mut(&instance).map_or(0, |inbox| {
                inbox.drain(..taken);
                inbox.len()
            });
            if left > 0 {
                state.queue(&instance);
            }
            state.work.extend(work);
            messages.into_iter().for_each(|message| state.send(message));
            !state.ready.is_empty()
        };
        for _ in 0..count {
            self.work.notify_one();
        }
        if more {
            self.turn.notify_one();
        }
        Ok(())
    }

    async fn abandon_orchestration_item(&self, _token: &str, _delay: Option<Duration>, _ignore: bool) -> Answer<()> {
        Ok(())
    }

    async fn read(&self, instance: &str) -> Answer<Vec<Event>> {
        Ok(self.state().history.get(instance).cloned().unwrap_or_default())
    }

    async fn read_with_execution(&self, instance: &str, _execution: u64) -> Answer<Vec<Event>> {
        self.read(instance).await
    }

    async fn append_with_execution(&self, _instance: &str, _execution: u64, _events: Vec<Event>) -> Answer<()> {
        Ok(())
    }

    async fn enqueue_for_worker(&self, item: WorkItem) -> Answer<()> {
        self.state().work.push_back(item);
        self.work.notify_one();
        Ok(())
    }

    async fn fetch_work_item(
        &self,
        _lock: Duration,
        poll: Duration,
        _session: Option<&SessionFetchConfig>,
        _tags: &TagFilter,
    ) -> Answer<Option<(WorkItem, String, u32)>> {
        Ok(self.wait(&self.work, poll, State::take_work).await)
    }

    async fn ack_work_item(&self, _token: &str, completion: Option<WorkItem>) -> Answer<()> {
        completion.into_iter().for_each(|completion| self.state().send(completion));
        self.turn.notify_one();
        Ok(())
    }

    async fn renew_work_item_lock(&self, _token: &str, _extend: Duration) -> Answer<()> {
        Ok(())
    }

    async fn renew_session_lock(&self, _owners: &[&str], _extend: Duration, _idle: Duration) -> Answer<usize> {
        Ok(0)
    }

    async fn cleanup_orphaned_sessions(&self, _idle: Duration) -> Answer<usize> {
        Ok(0)
    }

    async fn abandon_work_item(&self, _token: &str, _delay: Option<Duration>, _ignore: bool) -> Answer<()> {
        Ok(())
    }

    async fn renew_orchestration_item_lock(&self, _token: &str, _extend: Duration) -> Answer<()> {
        Ok(())
    }

    async fn enqueue_for_orchestrator(&self, item: WorkItem, _delay: Option<Duration>) -> Answer<()> {
        self.state().send(item);
        self.turn.notify_one();
        Ok(())
    }

    async fn get_custom_status(&self, _instance: &str, _seen: u64) -> Answer<Option<(Option<String>, u64)>> {
        Ok(None)
    }

    async fn get_kv_value(&self, _instance: &str, _key: &str) -> Answer<Option<String>> {
        Ok(None)
    }

    async fn get_kv_all_values(&self, _instance: &str) -> Answer<HashMap<String, String>> {
        Ok(HashMap::new())
    }

    async fn get_instance_stats(&self, _instance: &str) -> Answer<Option<SystemStats>> {
        Ok(None)
    }
}
