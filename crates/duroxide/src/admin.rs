//! The management questions: what runs, what ended, what can go.

use std::collections::HashSet;

use async_trait::async_trait;
use duroxide::Event;
use duroxide::providers::{
    DeleteInstanceResult, ExecutionInfo, InstanceFilter, InstanceInfo, InstanceTree, Provider as _, ProviderAdmin,
    ProviderError, PruneOptions, PruneResult, QueueDepths, SystemMetrics,
};
use tenure_store::text::{original, stored};
use tenure_store::{Error, Kind, Prune, Removed, Result};

use crate::convert::{int, micros, millis, unsigned};
use crate::observe::observe;
use crate::provider::TenureProvider;

/// How many instances a bulk call takes that says nothing about it.
const BULK: u32 = 1000;

fn not_found(instance: &str) -> Error {
    Error::new(Kind::NotFound, format!("instance '{instance}' not found"))
}

fn originals(ids: Vec<String>) -> Vec<String> {
    ids.into_iter().map(original).collect()
}

fn count(number: i64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

fn deleted(removed: Removed) -> DeleteInstanceResult {
    DeleteInstanceResult {
        instances_deleted: unsigned(removed.instances),
        executions_deleted: unsigned(removed.executions),
        events_deleted: unsigned(removed.events),
        queue_messages_deleted: unsigned(removed.messages),
    }
}

/// How many instances to look for: all of them where the call names those it means.
fn limit(filter: &InstanceFilter) -> i64 {
    if filter.instance_ids.is_some() { i64::MAX } else { filter.limit.unwrap_or(BULK).into() }
}

/// The instances of a bulk call among those that were found.
fn chosen(filter: &InstanceFilter, mut found: Vec<String>) -> Vec<String> {
    if let Some(named) = &filter.instance_ids {
        let named: HashSet<_> = named.iter().map(|id| stored(id)).collect();
        found.retain(|id| named.contains(id.as_str()));
        found.truncate(filter.limit.unwrap_or(BULK) as usize);
    }
    found
}

impl TenureProvider {
    async fn prune(&self, id: &str, options: &PruneOptions) -> Result<PruneResult> {
        let prune = Prune {
            completed_before: options.completed_before.map(micros),
            keep: options.keep_last.map(|keep| i64::from(keep.max(1))),
        };
        let removed = self.store.execution_prune(id, prune).await?;
        Ok(PruneResult {
            instances_processed: 1,
            executions_deleted: unsigned(removed.executions),
            events_deleted: unsigned(removed.events),
        })
    }
}

#[async_trait]
impl ProviderAdmin for TenureProvider {
    async fn list_instances(&self) -> Result<Vec<String>, ProviderError> {
        self.patiently("admin", "", || async { Ok(originals(self.store.instance_list(None).await?)) }).await
    }

    async fn list_instances_by_status(&self, status: &str) -> Result<Vec<String>, ProviderError> {
        self.patiently("admin", "", || async { Ok(originals(self.store.instance_list(Some(status)).await?)) }).await
    }

    async fn list_executions(&self, instance: &str) -> Result<Vec<u64>, ProviderError> {
        let id = stored(instance);
        let all = self.patiently("admin", instance, || async { self.store.execution_list(&id).await }).await?;
        Ok(all.into_iter().map(unsigned).collect())
    }

    async fn read_history_with_execution_id(
        &self,
        instance: &str,
        execution_id: u64,
    ) -> Result<Vec<Event>, ProviderError> {
        self.read_with_execution(instance, execution_id).await
    }

    async fn read_history(&self, instance: &str) -> Result<Vec<Event>, ProviderError> {
        self.read(instance).await
    }

    async fn latest_execution_id(&self, instance: &str) -> Result<u64, ProviderError> {
        Ok(self.list_executions(instance).await?.last().copied().unwrap_or(1))
    }

    async fn get_instance_info(&self, instance: &str) -> Result<InstanceInfo, ProviderError> {
        let id = stored(instance);
        let get = || async { self.store.instance_get(&id).await?.ok_or_else(|| not_found(instance)) };
        let info = self.patiently("admin", instance, get).await?;
        Ok(InstanceInfo {
            instance_id: original(info.id),
            orchestration_name: original(info.name),
            orchestration_version: original(info.version),
            current_execution_id: unsigned(info.execution),
            status: original(info.status),
            output: info.output.map(original),
            created_at: millis(info.created_at),
            updated_at: millis(info.updated_at),
            parent_instance_id: info.parent.map(original),
        })
    }

    async fn get_execution_info(&self, instance: &str, execution_id: u64) -> Result<ExecutionInfo, ProviderError> {
        let id = stored(instance);
        let missing =
            || Error::new(Kind::NotFound, format!("execution {execution_id} of instance '{instance}' not found"));
        let get = || async { self.store.execution_get(&id, int(execution_id)).await?.ok_or_else(missing) };
        let info = self.patiently("admin", instance, get).await?;
        Ok(ExecutionInfo {
            execution_id: unsigned(info.id),
            status: original(info.status),
            output: info.output.map(original),
            started_at: millis(info.started_at),
            completed_at: info.completed_at.map(millis),
            event_count: count(info.events),
        })
    }

    async fn get_system_metrics(&self) -> Result<SystemMetrics, ProviderError> {
        let census = self.patiently("admin", "", || async { self.store.instance_census().await }).await?;
        Ok(SystemMetrics {
            total_instances: unsigned(census.instances),
            total_executions: unsigned(census.executions),
            running_instances: unsigned(census.running),
            completed_instances: unsigned(census.completed),
            failed_instances: unsigned(census.failed),
            total_events: unsigned(census.events),
        })
    }

    async fn get_queue_depths(&self) -> Result<QueueDepths, ProviderError> {
        let (turns, work) = self.patiently("admin", "", || async { self.store.instance_depths().await }).await?;
        Ok(QueueDepths { orchestrator_queue: count(turns), worker_queue: count(work), timer_queue: 0 })
    }

    async fn list_children(&self, instance_id: &str) -> Result<Vec<String>, ProviderError> {
        let id = stored(instance_id);
        let children = || async { Ok(originals(self.store.instance_children(&id).await?)) };
        self.patiently("admin", instance_id, children).await
    }

    async fn get_parent_id(&self, instance_id: &str) -> Result<Option<String>, ProviderError> {
        Ok(self.get_instance_info(instance_id).await?.parent_instance_id)
    }

    async fn delete_instances_atomic(
        &self,
        ids: &[String],
        force: bool,
    ) -> Result<DeleteInstanceResult, ProviderError> {
        let ids: Vec<String> = ids.iter().map(|id| stored(id).into_owned()).collect();
        observe("admin", "", async { Ok(deleted(self.store.instance_delete(ids, force).await?)) }).await
    }

    async fn get_instance_tree(&self, instance_id: &str) -> Result<InstanceTree, ProviderError> {
        let id = stored(instance_id);
        let tree = || async { Ok(originals(self.store.instance_tree(&id).await?)) };
        let mut all_ids = self.patiently("admin", instance_id, tree).await?;
        if all_ids.is_empty() {
            all_ids.push(instance_id.to_owned());
        }
        Ok(InstanceTree { root_id: instance_id.to_owned(), all_ids })
    }

    async fn delete_instance(&self, instance_id: &str, force: bool) -> Result<DeleteInstanceResult, ProviderError> {
        let id = stored(instance_id);
        let act = async {
            let info = self.store.instance_get(&id).await?.ok_or_else(|| not_found(instance_id))?;
            if let Some(parent) = info.parent {
                let message =
                    format!("'{instance_id}' is a sub-orchestration of '{}': delete its root", original(parent));
                return Err(Error::new(Kind::InvalidState, message));
            }
            let tree = self.store.instance_tree(&id).await?;
            Ok(deleted(self.store.instance_delete(tree, force).await?))
        };
        observe("admin", instance_id, act).await
    }

    async fn delete_instance_bulk(&self, filter: InstanceFilter) -> Result<DeleteInstanceResult, ProviderError> {
        let act = async {
            let found = self.store.instance_roots(filter.completed_before.map(micros), limit(&filter)).await?;
            let mut removed = Removed::default();
            for root in chosen(&filter, found) {
                let tree = self.store.instance_tree(&root).await?;
                removed += self.store.instance_delete(tree, true).await?;
            }
            Ok(deleted(removed))
        };
        observe("admin", "", act).await
    }

    async fn prune_executions(&self, instance_id: &str, options: PruneOptions) -> Result<PruneResult, ProviderError> {
        let id = stored(instance_id);
        let act = async {
            self.store.instance_get(&id).await?.ok_or_else(|| not_found(instance_id))?;
            self.prune(&id, &options).await
        };
        observe("admin", instance_id, act).await
    }

    async fn prune_executions_bulk(
        &self,
        filter: InstanceFilter,
        options: PruneOptions,
    ) -> Result<PruneResult, ProviderError> {
        let act = async {
            let found = self.store.execution_prunable(filter.completed_before.map(micros), limit(&filter)).await?;
            let mut result = PruneResult::default();
            for id in chosen(&filter, found) {
                let pruned = self.prune(&id, &options).await?;
                result.instances_processed += pruned.instances_processed;
                result.executions_deleted += pruned.executions_deleted;
                result.events_deleted += pruned.events_deleted;
            }
            Ok(result)
        };
        observe("admin", "", act).await
    }
}
