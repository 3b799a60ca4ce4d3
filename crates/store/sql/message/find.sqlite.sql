-- One row at a time.
select $2 as n, m.id, m.lane, {until} as leased_until, m.created_at, m.expire_at, m.origin_id, m.attempts, m.max_attempts,
       m.buried_id, m.buried_from, m.reason, m.source_id, m.key, m.kind, m.encoding, m.reference, m.producer, m.payload,
       m.leased_at, m.worker, cast(null as bigint) as due_at
from tenure.message m
where m.id = $1 and m.origin_id is null
union all
select $2, m.id, m.lane, {until} as leased_until, m.created_at, m.expire_at, m.origin_id, m.attempts, m.max_attempts,
       m.buried_id, m.buried_from, m.reason, m.source_id, m.key, m.kind, m.encoding, m.reference, m.producer, m.payload,
       m.leased_at, m.worker, cast(null as bigint) as due_at
from tenure.message m
where m.origin_id = $1
union all
select $2, s.id, s.lane, 0, s.created_at, s.expire_at, s.origin_id, s.attempts, s.max_attempts, s.buried_id, s.buried_from,
       s.reason, s.source_id, s.key, s.kind, s.encoding, s.reference, s.producer, s.payload, null, null, s.due_at
from tenure.scheduled s
where s.id = $1 and s.origin_id is null
union all
select $2, s.id, s.lane, 0, s.created_at, s.expire_at, s.origin_id, s.attempts, s.max_attempts, s.buried_id, s.buried_from,
       s.reason, s.source_id, s.key, s.kind, s.encoding, s.reference, s.producer, s.payload, null, null, s.due_at
from tenure.scheduled s
where s.origin_id = $1
union all
select $2, a.position, a.lane, a.finished_at, a.created_at, a.expire_at, a.id, a.attempts, a.max_attempts, null, null, a.reason,
       null, a.key, a.kind, a.encoding, a.reference, a.producer, a.payload, a.leased_at, a.worker, null
from tenure.archive a
where a.id = $1
