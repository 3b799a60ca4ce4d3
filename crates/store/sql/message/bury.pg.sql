-- Into the dead queue when the queue has one, else into the archive: one statement, so exactly once.
-- `uncount` takes back the attempt that a claim added only to find that there was none left.
-- Rows are found as in `complete`.
with tx as materialized (select txid_current() as id),
     clock as materialized (select {now} as now from tx),
     done as (
         delete from tenure.message m
         using unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::text[], $10::text[], $11::integer[], $12::bigint[])
             as i (id, attempt, worker, lane, token, new_id, outcome, why, uncount, n)
         where {held}
         returning m.*, i.new_id, i.outcome, i.why, i.uncount, i.n
     ),
     moved as (
         insert into tenure.message (
             id, lane, leased_until, created_at, expire_at, attempts, buried_id, buried_from, reason, key, kind, encoding,
             reference, producer, payload
         )
         select coalesce(d.new_id, nextval('tenure.message_id')), dead.id, 0, c.now, c.now + dead.expire_us, 0, d.id, q.name,
                d.why, d.key, d.kind, d.encoding, d.reference, d.producer, d.payload
         from clock c
         cross join done d
         join tenure.lane l on l.id = d.lane
         join tenure.queue q on q.id = l.queue
         join tenure.lane dead on dead.id = l.dead_lane
         returning buried_id, lane, id
     ),
     kept as (
         insert into tenure.archive (
             id, position, queue, lane, outcome, reason, worker, leased_at, attempts, max_attempts, created_at, finished_at,
             expire_at, key, kind, encoding, reference, producer, payload
         )
         select coalesce(d.origin_id, d.id), d.id, l.queue, d.lane, d.outcome, d.why, d.worker, d.leased_at, d.attempts - d.uncount,
                d.max_attempts, d.created_at, c.now, d.expire_at, d.key, d.kind, d.encoding, d.reference, d.producer, d.payload
         from clock c
         cross join done d
         join tenure.lane l on l.id = d.lane
         where not exists (select 1 from tenure.lane dead where dead.id = l.dead_lane)
     ),
     {call $2}
select d.n, m.lane, m.id
from done d
left join moved m on m.buried_id = d.id
