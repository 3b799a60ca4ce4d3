-- An instance is whatever something is kept for: history and messages may come before it has a row. Likewise an execution
-- is what has a row or events.
select (select count(*) from (
            select instance_id from instances
            union
            select instance_id from executions
            union
            select instance_id from history
            union
            select instance_id from orchestrator_queue
            union
            select instance_id from worker_queue where instance_id is not null
            union
            select instance_id from kv_store
            union
            select instance_id from kv_delta
        )) as instances,
       (select count(*) from (
            select instance_id, execution_id from executions
            union
            select instance_id, execution_id from history
        )) as executions,
       (select count(*) from history) as events,
       (select count(*) from orchestrator_queue) as messages,
       (select count(*) from worker_queue) as activities,
       (select count(*) from (
            select instance_id, key from kv_store
            union
            select instance_id, key from kv_delta
        )) as kept,
       (select count(*) from sessions) as sessions
