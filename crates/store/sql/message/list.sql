select
    id, lane, {until} as leased_until, created_at, expire_at, origin_id, attempts, max_attempts, buried_id, buried_from, reason,
    source_id, key, kind, encoding, reference, producer, payload, leased_at, worker, cast(null as bigint) as due_at
from tenure.message m
where lane = $2
  and lane > 0
  and id >= $3
  and (($4 and {until} <= {now}) or ($5 and {until} > {now}))
order by id
limit $6
