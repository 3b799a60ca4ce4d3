-- Rows are found as in `complete`.
with clock as materialized (select {now} as now),
     gone as (
         delete from tenure.message m
         using (
             select i.n, f.row
             from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]) as i (id, attempt, worker, lane, n)
             cross join lateral {held} f
         ) held
         where m.ctid = held.row
         returning m.*, held.n
     ),
     kept as (
         insert into tenure.archive (
             id, position, queue, lane, outcome, reason, worker, leased_at, attempts, max_attempts, created_at, finished_at,
             expire_at, key, kind, encoding, reference, producer, payload
         )
         select coalesce(g.origin_id, g.id), g.id, l.queue, g.lane, 'completed', null, g.worker, g.leased_at, g.attempts,
                g.max_attempts, g.created_at, c.now, g.expire_at, g.key, g.kind, g.encoding, g.reference, g.producer, g.payload
         from clock c
         cross join gone g
         join tenure.lane l on l.id = g.lane
         where l.keep_completed
     )
select n from gone
