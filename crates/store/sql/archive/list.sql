-- Newest first, from a pivot (finished_at, id) downwards.
select
    id, queue, lane, outcome, reason, worker, leased_at, attempts, max_attempts, created_at, finished_at, expire_at,
    key, kind, encoding, reference, producer, payload
from tenure.archive
where queue = $1
  and queue > 0
  and (not $2 or outcome <> 'completed')
  and (finished_at < $3 or (finished_at = $3 and id <= $4))
order by finished_at desc, id desc
limit $5
