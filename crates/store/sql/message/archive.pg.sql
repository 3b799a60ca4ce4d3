-- As `complete_kept`, but a copy is kept whatever the queue's retention says, and comes back. Rows are found as in
-- `complete`.
with clock as materialized (select {now} as now),
     done as (
         delete from tenure.message m
         using unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]) as i (id, attempt, worker, lane, token)
         where {held}
         returning m.*
     )
insert into tenure.archive (
    id, position, queue, lane, outcome, reason, worker, leased_at, attempts, max_attempts, created_at, finished_at,
    expire_at, key, kind, encoding, reference, producer, payload
)
select coalesce(d.origin_id, d.id), d.id, l.queue, d.lane, 'completed', null, d.worker, d.leased_at, d.attempts,
       d.max_attempts, d.created_at, c.now, d.expire_at, d.key, d.kind, d.encoding, d.reference, d.producer, d.payload
from clock c
cross join done d
join tenure.lane l on l.id = d.lane
returning
    position, id, queue, lane, outcome, reason, worker, leased_at, attempts, max_attempts, created_at, finished_at,
    expire_at, key, kind, encoding, reference, producer, payload
