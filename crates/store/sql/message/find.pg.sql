-- Messages by the ids their producers know, wherever they are: ready or leased, scheduled, or in the archive. The
-- `leased_until` of an archived one is the time of its end. Rows are found as in `explain`.
select i.n, f.id, f.lane, f.leased_until, f.created_at, f.expire_at, f.origin_id, f.attempts, f.max_attempts, f.buried_id,
       f.buried_from, f.reason, f.source_id, f.key, f.kind, f.encoding, f.reference, f.producer, f.payload, f.leased_at,
       f.worker, f.due_at
from unnest($1::bigint[], $2::bigint[]) as i (id, n)
cross join lateral (
    select m.id, m.lane, {until} as leased_until, m.created_at, m.expire_at, m.origin_id, m.attempts, m.max_attempts,
           m.buried_id, m.buried_from, m.reason, m.source_id, m.key, m.kind, m.encoding, m.reference, m.producer, m.payload,
           m.leased_at, m.worker, cast(null as bigint) as due_at
    from tenure.message m
    where m.id = i.id and m.origin_id is null
    union all
    select m.id, m.lane, {until} as leased_until, m.created_at, m.expire_at, m.origin_id, m.attempts, m.max_attempts,
           m.buried_id, m.buried_from, m.reason, m.source_id, m.key, m.kind, m.encoding, m.reference, m.producer, m.payload,
           m.leased_at, m.worker, cast(null as bigint) as due_at
    from tenure.message m
    where m.origin_id = i.id
    union all
    select s.id, s.lane, 0, s.created_at, s.expire_at, s.origin_id, s.attempts, s.max_attempts, s.buried_id, s.buried_from,
           s.reason, s.source_id, s.key, s.kind, s.encoding, s.reference, s.producer, s.payload, null, null, s.due_at
    from tenure.scheduled s
    where s.id = i.id and s.origin_id is null
    union all
    select s.id, s.lane, 0, s.created_at, s.expire_at, s.origin_id, s.attempts, s.max_attempts, s.buried_id, s.buried_from,
           s.reason, s.source_id, s.key, s.kind, s.encoding, s.reference, s.producer, s.payload, null, null, s.due_at
    from tenure.scheduled s
    where s.origin_id = i.id
    union all
    select a.position, a.lane, a.finished_at, a.created_at, a.expire_at, a.id, a.attempts, a.max_attempts, null, null, a.reason,
           null, a.key, a.kind, a.encoding, a.reference, a.producer, a.payload, a.leased_at, a.worker, null
    from tenure.archive a
    where a.id = i.id
    offset 0
) f
