-- A retry for later: the message waits among the scheduled ones under its own id, out of the hot path's way.
-- `uncount` takes the attempt back when the handler has asked to be called later.
-- Rows are found as in `complete`.
with clock as materialized (select {now} as now),
     done as (
         delete from tenure.message m
         using unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::boolean[], $11::integer[], $12::bigint[])
             as i (id, attempt, worker, lane, token, due, delay_us, keep_place, uncount, n)
         where {held}
         returning m.*, i.due, i.delay_us, i.keep_place, i.uncount, i.n
     ),
     later as (
         insert into tenure.scheduled (
             id, lane, due_at, keep_place, created_at, expire_at, origin_id, attempts, max_attempts, buried_id,
             buried_from, reason, source_id, key, kind, encoding, reference, producer, payload
         )
         select d.id, d.lane, coalesce(d.due, c.now + d.delay_us), d.keep_place, d.created_at, d.expire_at,
                d.origin_id, d.attempts - d.uncount, d.max_attempts, d.buried_id, d.buried_from, d.reason, d.source_id, d.key,
                d.kind, d.encoding, d.reference, d.producer, d.payload
         from clock c
         cross join done d
     ),
     {call $2}
select n, lane from done
