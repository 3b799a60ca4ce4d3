-- A retry for later: the message waits among the scheduled ones under its own id, out of the hot path's way.
-- Rows are found as in `complete`.
with clock as materialized (select {now} as now),
     gone as (
         delete from tenure.message m
         using (
             select i.due, i.delay_us, i.keep_place, i.n, f.row
             from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::boolean[], $9::bigint[])
                 as i (id, attempt, worker, lane, due, delay_us, keep_place, n)
             cross join lateral {held} f
         ) held
         where m.ctid = held.row
         returning m.*, held.due, held.delay_us, held.keep_place, held.n
     ),
     later as (
         insert into tenure.scheduled (
             id, lane, due_at, keep_place, created_at, expire_at, origin_id, attempts, max_attempts, buried_id,
             buried_from, reason, source_id, key, kind, encoding, reference, producer, payload
         )
         select g.id, g.lane, coalesce(g.due, c.now + g.delay_us), g.keep_place, g.created_at, g.expire_at,
                g.origin_id, g.attempts, g.max_attempts, g.buried_id, g.buried_from, g.reason, g.source_id, g.key,
                g.kind, g.encoding, g.reference, g.producer, g.payload
         from clock c
         cross join gone g
     )
select n, lane from gone
