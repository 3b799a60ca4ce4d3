-- SQLite has no writable CTEs: copy, then delete, in one transaction.
insert into tenure.message (
    id, lane, leased_until, created_at, expire_at, origin_id, attempts, max_attempts, key, kind, encoding, reference, payload
)
select $3, a.lane, 0, a.created_at, {now} + l.expire_us, a.id, 0,
       a.max_attempts, a.key, a.kind, a.encoding, a.reference, a.payload
from tenure.archive a
join tenure.lane l on l.id = a.lane
where a.id = $2 and a.outcome <> 'completed'
returning id, lane, origin_id;
delete from tenure.archive where id = $2 and outcome <> 'completed'
