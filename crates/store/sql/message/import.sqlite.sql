insert into tenure.message (
    id, lane, leased_until, created_at, expire_at, attempts, max_attempts, source_id, key, kind, encoding, reference, payload
)
select $2, l.id, $4, {now}, $5, $6, $7, $8, $9, $10, $11, $12, $13
from tenure.lane l
where l.id = $3
on conflict (lane, source_id) where source_id is not null do nothing
returning id, created_at, source_id
