-- SQLite has no writable CTEs: copy, then delete, in one transaction.
insert into tenure.scheduled (
    id, lane, due_at, keep_place, created_at, expire_at, origin_id, attempts, max_attempts, buried_id,
    buried_from, reason, source_id, key, kind, encoding, reference, producer, payload
)
select id, lane, coalesce($8, {now} + $9), $10, created_at, expire_at,
       origin_id, attempts - $11, max_attempts, buried_id, buried_from, reason, source_id, key,
       kind, encoding, reference, producer, payload
from tenure.message
where {held $3};
delete from tenure.message
where {held $3}
returning $12 as n, lane
