-- By number of rows, as the library's tables promise; whoever reads on and on uses `archive/list`, which has a pivot.
select
    id, queue, lane, outcome, reason, worker, leased_at, attempts, max_attempts, created_at, finished_at, expire_at,
    key, kind, encoding, reference, producer, payload
from tenure.archive
where (not $1 or outcome <> 'completed')
  and attempts >= $2
  and (cast($3 as bigint) is null or worker = $3)
order by finished_at desc, id desc
limit $4 offset $5
