select
    q.id, q.name, q.namespace, coalesce(q.requested, q.partitions) as requested, q.lease_us, q.expire_us, q.max_attempts,
    (select d.name from tenure.queue d where d.id = q.dead_queue) as dead_queue,
    q.retain_completed_us, q.retain_dead_us, q.tail_on_expiry, q.dedupe_us, q.reference, q.placement,
    q.paused_at, q.created_at, q.updated_at
from tenure.queue q
where q.name = $1
