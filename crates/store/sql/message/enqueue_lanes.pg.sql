-- As `enqueue`, for a batch of several lanes: `$2` lists them, `lane` is a place in that list (null: the first), so that
-- settings are looked up once per lane and not once per row, which is worth a quarter of the rate in bulk.
with clock as materialized (select txid_current() as tx, {now} as now),
     lanes as materialized (
         select array_agg(l.id order by d.n) as ids, array_agg(l.expire_us order by d.n) as expiries
         from unnest($2::bigint[]) with ordinality as d (id, n)
         left join tenure.lane l on l.id = d.id
     )
insert into tenure.message (
    id, lane, leased_until, created_at, expire_at, attempts, max_attempts, key, kind, encoding, reference, producer, payload
)
select case when (select tx from clock) > 0 then coalesce(i.id, nextval('tenure.message_id')) end,
       ((select ids from lanes))[coalesce(i.lane, 1)], 0, (select now from clock),
       (select now from clock) + coalesce(i.expire_us, ((select expiries from lanes))[coalesce(i.lane, 1)]), 0,
       i.max_attempts, i.key, i.kind, i.encoding, i.reference, i.producer, i.payload
from unnest(
    $3::bigint[], $4::bigint[], $5::bigint[], $6::integer[], $7::text[], $8::text[], $9::text[], $10::text[], $11::bigint[], $12::bytea[]
) as i (id, lane, expire_us, max_attempts, key, kind, encoding, reference, producer, payload)
returning id, created_at, expire_at
