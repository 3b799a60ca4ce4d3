-- As given, under a new id; a source id that is already here changes nothing.
with tx as materialized (select txid_current() as id),
     clock as materialized (select {now} as now from tx)
insert into tenure.message (
    id, lane, leased_until, created_at, expire_at, attempts, max_attempts, source_id, key, kind, encoding, reference, payload
)
select coalesce(i.id, nextval('tenure.message_id')), i.lane, i.leased_until, i.now, i.expire_at, i.attempts,
       i.max_attempts, i.source_id, i.key, i.kind, i.encoding, i.reference, i.payload
from (
    select i.*, c.now
    from clock c
    cross join unnest(
        $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::integer[], $7::integer[], $8::text[], $9::text[],
        $10::text[], $11::text[], $12::text[], $13::bytea[]
    ) as i (id, lane, leased_until, expire_at, attempts, max_attempts, source_id, key, kind, encoding, reference, payload)
    join tenure.lane l on l.id = i.lane
) i
on conflict (lane, source_id) where source_id is not null do nothing
returning id, created_at, source_id
