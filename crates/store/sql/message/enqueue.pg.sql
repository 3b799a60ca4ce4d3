-- Many messages of one lane, which is what nearly every batch is. A lane that is gone leaves its column null, and the
-- whole statement fails: all messages are stored, or none.
-- `txid_current()` is read before an id is drawn: a transaction that has drawn an id is then always seen as running,
-- which is what lets `lane/floor` say that nothing below it can still appear.
with lane as materialized (
    select txid_current() as tx, {now} as now, id, expire_us from tenure.lane where id = $2
)
insert into tenure.message (
    id, lane, leased_until, created_at, expire_at, attempts, max_attempts, key, kind, encoding, reference, producer, payload
)
select case when (select tx from lane) > 0 then coalesce(i.id, nextval('tenure.message_id')) else 0 end,
       (select id from lane), 0, (select now from lane), (select now from lane) + coalesce(i.expire_us, (select expire_us from lane)),
       0, i.max_attempts, i.key, i.kind, i.encoding, i.reference, i.producer, i.payload
from unnest(
    $3::bigint[], $4::bigint[], $5::integer[], $6::text[], $7::text[], $8::text[], $9::text[], $10::bigint[], $11::bytea[]
) as i (id, expire_us, max_attempts, key, kind, encoding, reference, producer, payload)
returning id, created_at, expire_at
