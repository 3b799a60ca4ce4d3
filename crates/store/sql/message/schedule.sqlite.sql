insert into tenure.scheduled (
    id, lane, due_at, keep_place, created_at, expire_at, attempts, max_attempts, key, kind, encoding, reference, payload
)
select $2, l.id, coalesce($11, {now} + $12), 0, {now},
       coalesce($11, {now} + $12) + coalesce($4, q.expire_us), 0, $5, $6, $7, $8, $9, $10
from tenure.lane l
join tenure.queue q on q.id = l.queue
where l.id = $3 and $13 is not null
returning id, created_at, expire_at, due_at
