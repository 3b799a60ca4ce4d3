-- Only one that waits for a later try has a time of its own. The execution is a text in one of duroxide's two schemas.
select null as nonce, instance_id, cast(execution_id as integer) as execution, activity_id, session_id, tag,
       case when visible_at > unixepoch('subsec') * 1000 then min(visible_at, 9223372036854775) * 1000 else 0 end as due_at,
       attempt_count, work_item
from worker_queue
where instance_id = ?1
order by id
