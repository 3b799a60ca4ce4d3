-- Rows are found as in `complete`.
with clock as materialized (select {now} as now),
     done as (
         delete from tenure.message m
         using unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
             as i (id, attempt, worker, lane, token, n)
         where {held}
         returning m.*, i.n
     ),
     kept as (
         insert into tenure.archive (
             id, position, queue, lane, outcome, reason, worker, leased_at, attempts, max_attempts, created_at, finished_at,
             expire_at, key, kind, encoding, reference, producer, payload
         )
         select coalesce(d.origin_id, d.id), d.id, l.queue, d.lane, 'completed', null, d.worker, d.leased_at, d.attempts,
                d.max_attempts, d.created_at, c.now, d.expire_at, d.key, d.kind, d.encoding, d.reference, d.producer, d.payload
         from clock c
         cross join done d
         join tenure.lane l on l.id = d.lane
         where l.keep_completed
     ),
     {call $2}
select n from done
