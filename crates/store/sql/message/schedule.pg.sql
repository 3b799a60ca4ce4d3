-- A lane that is gone leaves its column null, and the whole statement fails: all messages are stored, or none.
-- A due time given as an instant wins over one given as a delay; expiry counts from the due time.
with tx as materialized (select txid_current() as id),
     clock as materialized (select {now} as now from tx)
insert into tenure.scheduled (
    id, lane, due_at, keep_place, created_at, expire_at, attempts, max_attempts, key, kind, encoding, reference, payload
)
select coalesce(i.id, nextval('tenure.message_id')), i.lane_id, i.due_at, false, i.now, i.due_at + i.expiry, 0,
       i.max_attempts, i.key, i.kind, i.encoding, i.reference, i.payload
from (
    select i.*, l.id as lane_id, c.now, coalesce(i.due, c.now + i.delay_us) as due_at, coalesce(i.expire_us, q.expire_us) as expiry
    from clock c
    cross join unnest(
        $2::bigint[], $3::bigint[], $4::bigint[], $5::integer[], $6::text[], $7::text[], $8::text[], $9::text[],
        $10::bytea[], $11::bigint[], $12::bigint[], $13::bigint[]
    ) as i (id, lane, expire_us, max_attempts, key, kind, encoding, reference, payload, due, delay_us, n)
    left join tenure.lane l on l.id = i.lane
    left join tenure.queue q on q.id = l.queue
    order by i.n
) i
returning id, created_at, expire_at, due_at
