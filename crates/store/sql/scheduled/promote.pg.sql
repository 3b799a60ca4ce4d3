-- Due messages join the tail in the order of their due times; a retry that keeps its place keeps its id.
-- The source is forgotten: it may have been imported again meanwhile, and one of two with the same source would stop the
-- whole lane.
with tx as materialized (select txid_current() as id),
     gone as (
         delete from tenure.scheduled s
         using tx
         cross join unnest($1::bigint[], $2::bigint[], $3::bigint[]) as i (id, new_id, n)
         where s.id = i.id and tx.id > 0
         returning s.*, i.new_id, i.n
     )
insert into tenure.message (
    id, lane, leased_until, created_at, expire_at, origin_id, attempts, max_attempts, buried_id, buried_from, reason,
    source_id, key, kind, encoding, reference, producer, payload
)
select case when g.keep_place then g.id else coalesce(g.new_id, nextval('tenure.message_id')) end, g.lane, 0,
       g.created_at, g.expire_at, case when g.keep_place then g.origin_id else coalesce(g.origin_id, g.id) end,
       g.attempts, g.max_attempts, g.buried_id, g.buried_from, g.reason, null, g.key, g.kind, g.encoding,
       g.reference, g.producer, g.payload
from (select * from gone order by n) g
returning id, lane
