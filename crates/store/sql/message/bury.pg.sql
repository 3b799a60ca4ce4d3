-- Into the dead queue when the queue has one, else into the archive: one statement, so exactly once.
-- `uncount` takes back the attempt that a claim added only to find that there was none left.
with tx as materialized (select txid_current() as id),
     clock as materialized (select {now} as now from tx),
     doomed as materialized (
         select i.*, m.row, q.id as queue, q.name as queue_name, d.id as dead_lane, d.expire_us
         from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], $8::text[], $9::integer[], $10::bigint[])
             as i (id, attempt, worker, lane, new_id, outcome, reason, uncount, n)
         cross join lateral (
             select ctid as row, lane
             from tenure.message
             where id = i.id
               and leased_until > 0
               and (i.attempt is null or attempts = i.attempt)
               and (i.worker is null or worker = i.worker)
               and (i.lane is null or lane = i.lane)
             offset 0
             for update
         ) m
         join tenure.lane l on l.id = m.lane
         join tenure.queue q on q.id = l.queue
         left join tenure.lane d on d.id = l.dead_lane
     ),
     moved as (
         update tenure.message m
         set id = coalesce(d.new_id, nextval('tenure.message_id')), lane = d.dead_lane, leased_until = 0,
             created_at = c.now, expire_at = c.now + d.expire_us, origin_id = null, worker = null, attempts = 0,
             max_attempts = null, buried_id = m.id, buried_from = d.queue_name, reason = d.reason, source_id = null
         from clock c
         cross join doomed d
         where m.ctid = d.row and d.dead_lane is not null
         returning d.n, m.lane, m.id
     ),
     gone as (
         delete from tenure.message m
         using doomed d
         where m.ctid = d.row and d.dead_lane is null
         returning m.*, d.queue, d.outcome, d.reason as why, d.uncount, d.n
     ),
     kept as (
         insert into tenure.archive (
             id, position, queue, lane, outcome, reason, worker, leased_at, attempts, max_attempts, created_at, finished_at,
             expire_at, key, kind, encoding, reference, producer, payload
         )
         select coalesce(g.origin_id, g.id), g.id, g.queue, g.lane, g.outcome, g.why, g.worker, g.leased_at, g.attempts - g.uncount,
                g.max_attempts, g.created_at, c.now, g.expire_at, g.key, g.kind, g.encoding, g.reference, g.producer, g.payload
         from clock c
         cross join gone g
     )
select n, lane, id from moved
union all
select n, null, null from gone
