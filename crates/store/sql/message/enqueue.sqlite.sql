-- No arrays here, and no need: `$2` is unused and `$4` is the lane itself.
insert into tenure.message (
    id, lane, leased_until, created_at, expire_at, attempts, max_attempts, key, kind, encoding, reference, payload
)
select $3, l.id, 0, {now}, {now} + coalesce($5, l.expire_us), 0, $6, $7, $8, $9, $10, $11
from tenure.lane l
where l.id = $4
returning id, created_at, expire_at
