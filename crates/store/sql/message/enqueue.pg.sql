-- A lane that is gone leaves its column null, and the whole statement fails: all messages are stored, or none.
-- `txid_current()` is read before any id is drawn: a transaction that has drawn an id is then always visible as
-- running, which is what lets `lane/floor` say that nothing below it can still appear.
with tx as materialized (select txid_current() as id),
     clock as materialized (select {now} as now from tx)
insert into tenure.message (
    id, lane, leased_until, created_at, expire_at, attempts, max_attempts, key, kind, encoding, reference, payload
)
select coalesce(i.id, nextval('tenure.message_id')), i.lane_id, 0, i.now, i.expire_at, 0, i.max_attempts,
       i.key, i.kind, i.encoding, i.reference, i.payload
from (
    select i.*, l.id as lane_id, c.now, c.now + coalesce(i.expire_us, q.expire_us) as expire_at
    from clock c
    cross join unnest(
        $2::bigint[], $3::bigint[], $4::bigint[], $5::integer[], $6::text[], $7::text[], $8::text[], $9::text[],
        $10::bytea[], $11::bigint[]
    ) as i (id, lane, expire_us, max_attempts, key, kind, encoding, reference, payload, n)
    left join tenure.lane l on l.id = i.lane
    left join tenure.queue q on q.id = l.queue
    order by i.n
) i
returning id, created_at, expire_at
