insert into tenure.queue (
    name, namespace, partitions, lease_us, expire_us, max_attempts, dead_queue, retain_completed_us,
    retain_dead_us, tail_on_expiry, dedupe_us, reference, placement, paused_at, created_at, updated_at,
    requested
)
select
    $2, $3, $15, $5, $6, $7, (select d.id from tenure.queue d where d.name = $8), $9,
    $10, $11, $12, $13, $14, null, c.now, c.now,
    $4
from (select {now} as now) c
returning id, created_at
