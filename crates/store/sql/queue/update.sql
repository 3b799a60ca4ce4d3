update tenure.queue
set lease_us            = $3,
    expire_us           = $4,
    max_attempts        = $5,
    dead_queue          = (select d.id from tenure.queue d where d.name = $6),
    retain_completed_us = $7,
    retain_dead_us      = $8,
    tail_on_expiry      = $9,
    dedupe_us           = $10,
    reference           = $11,
    updated_at          = case when {now} > updated_at then {now} else updated_at + 1 end
where name = $2
  and updated_at = coalesce($12, updated_at)
returning id
