-- Dead back to ready, of one queue (`$2`) or any: fresh attempts, a place at the tail, the same identity. A completed message never comes back.
with tx as materialized (select txid_current() as id),
     clock as materialized (select {now} as now from tx),
     gone as (
         delete from tenure.archive a
         using unnest($3::bigint[], $4::bigint[], $5::bigint[]) as i (id, new_id, n)
         where a.id = i.id and a.outcome <> 'completed' and ($2::bigint is null or a.queue = $2)
         returning a.*, i.new_id, i.n
     )
insert into tenure.message (
    id, lane, leased_until, created_at, expire_at, origin_id, attempts, max_attempts, key, kind, encoding, reference, producer, payload
)
select coalesce(g.new_id, nextval('tenure.message_id')), g.lane, 0, g.created_at, g.now + g.expire_us, g.id, 0,
       g.max_attempts, g.key, g.kind, g.encoding, g.reference, g.producer, g.payload
from (
    select g.*, c.now, l.expire_us
    from clock c
    cross join gone g
    join tenure.lane l on l.id = g.lane
    order by g.n
) g
returning
    id, lane, leased_until, created_at, expire_at, origin_id, attempts, max_attempts, buried_id, buried_from, reason,
    source_id, key, kind, encoding, reference, producer, payload, leased_at, worker, cast(null as bigint) as due_at
