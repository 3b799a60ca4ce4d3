select
    id, lane, {until} as leased_until, created_at, expire_at, origin_id, attempts, max_attempts, buried_id, buried_from, reason,
    source_id, key, kind, encoding, reference, producer, payload, leased_at, worker, cast(null as bigint) as due_at
from tenure.message m
where id = $1 and origin_id is null
union all
select
    id, lane, {until} as leased_until, created_at, expire_at, origin_id, attempts, max_attempts, buried_id, buried_from, reason,
    source_id, key, kind, encoding, reference, producer, payload, leased_at, worker, cast(null as bigint) as due_at
from tenure.message m
where origin_id = $1
