-- The next instances, by key: every part is read in the order of an index, and no further than the limit asks for.
select p.instance_id, (select count(*) from history h where h.instance_id = p.instance_id) as events
from (
    select instance_id from instances where instance_id >= ?1
    union
    select instance_id from executions where instance_id >= ?1
    union
    select instance_id from history where instance_id >= ?1
    union
    select instance_id from orchestrator_queue where instance_id >= ?1
    union
    select instance_id from worker_queue where instance_id >= ?1
    union
    select instance_id from kv_store where instance_id >= ?1
    union
    select instance_id from kv_delta where instance_id >= ?1
    order by 1
    limit ?2
) p
order by p.instance_id
