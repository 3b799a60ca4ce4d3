-- SQLite has no writable CTEs: copy, then delete, in one transaction.
-- The source is forgotten: it may have been imported again meanwhile, and one of two with the same source would stop the
-- whole lane.
insert into tenure.message (
    id, lane, leased_until, created_at, expire_at, origin_id, attempts, max_attempts, buried_id, buried_from, reason,
    source_id, key, kind, encoding, reference, producer, payload
)
select case when keep_place then id else $2 end, lane, 0,
       created_at, expire_at, case when keep_place then origin_id else coalesce(origin_id, id) end,
       attempts, max_attempts, buried_id, buried_from, reason, null, key, kind, encoding,
       reference, producer, payload
from tenure.scheduled
where id = $1
returning id, lane;
delete from tenure.scheduled where id = $1
