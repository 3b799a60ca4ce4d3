-- One message, without arrays: a lone caller's rate is decided by how little the server has to set up for a statement.
-- SQLite's `enqueue` is the same act.
insert into tenure.message (
    id, lane, leased_until, created_at, expire_at, attempts, max_attempts, key, kind, encoding, reference, producer, payload
)
select case when txid_current() > 0 then nextval('tenure.message_id') end,
       l.id, 0, c.now, c.now + coalesce($3, l.expire_us), 0, $4, $5, $6, $7, $8, $9, $10
from (select {now} as now offset 0) c
cross join tenure.lane l
where l.id = $2
returning id, created_at, expire_at
