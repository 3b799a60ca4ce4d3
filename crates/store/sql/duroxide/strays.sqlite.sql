-- Activities that belong to no instance; their own id comes first, which the nonce is made of.
select id, instance_id, cast(execution_id as integer) as execution, activity_id, session_id, tag,
       case when visible_at > unixepoch('subsec') * 1000 then min(visible_at, 9223372036854775) * 1000 else 0 end as due_at,
       attempt_count, work_item
from worker_queue
where instance_id is null
order by id
