-- Queues with their lanes: a row for each lane, and for a queue without any a row with null.
select
    q.id, q.name, q.namespace, coalesce(q.requested, q.partitions) as requested, q.lease_us, q.expire_us, q.max_attempts,
    (select d.name from tenure.queue d where d.id = q.dead_queue) as dead_queue,
    q.retain_completed_us, q.retain_dead_us, q.tail_on_expiry, q.dedupe_us, q.reference, q.placement,
    q.paused_at, q.created_at, q.updated_at, l.id as lane
from (
    select
        id, name, namespace, requested, partitions, lease_us, expire_us, max_attempts, dead_queue, retain_completed_us,
        retain_dead_us, tail_on_expiry, dedupe_us, reference, placement, paused_at, created_at, updated_at
    from tenure.queue
    where name >= $1
      and (cast($2 as text) is null or namespace = $2)
    order by name
    limit $3
) q
left join tenure.lane l on l.queue = q.id
order by q.name, l.partition
