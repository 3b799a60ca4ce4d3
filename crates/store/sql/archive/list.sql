-- Of one outcome, newest first, from a pivot (finished_at, id) downwards.
select
    id, queue, lane, outcome, reason, worker, leased_at, attempts, max_attempts, created_at, finished_at, expire_at,
    key, kind, encoding, reference, producer, payload
from tenure.archive
where queue = $1
  and queue > 0
  and outcome = $2
  and finished_at <= $3
  and (finished_at < $3 or id <= $4)
order by finished_at desc, id desc
limit $5
