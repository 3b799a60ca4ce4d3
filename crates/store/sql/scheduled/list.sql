select
    id, lane, cast(0 as bigint) as leased_until, created_at, expire_at, origin_id, attempts, max_attempts, buried_id,
    buried_from, reason, source_id, key, kind, encoding, reference, producer, payload,
    cast(null as bigint) as leased_at, cast(null as bigint) as worker, due_at
from tenure.scheduled
where lane = $1
  and lane > 0
  and id >= $2
order by id
limit $3
