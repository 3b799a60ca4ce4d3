-- SQLite has no writable CTEs: copy, then delete, in one transaction.
insert into tenure.message (
    id, lane, leased_until, created_at, expire_at, origin_id, attempts, max_attempts, key, kind, encoding, reference, producer, payload
)
select $4, a.lane, 0, a.created_at, {now} + l.expire_us, a.id, 0,
       a.max_attempts, a.key, a.kind, a.encoding, a.reference, a.producer, a.payload
from tenure.archive a
join tenure.lane l on l.id = a.lane
where a.id = $3 and a.outcome <> 'completed' and ($2 is null or a.queue = $2)
returning
    id, lane, leased_until, created_at, expire_at, origin_id, attempts, max_attempts, buried_id, buried_from, reason,
    source_id, key, kind, encoding, reference, producer, payload, leased_at, worker, cast(null as bigint) as due_at;
delete from tenure.archive where id = $3 and outcome <> 'completed' and ($2 is null or queue = $2)
