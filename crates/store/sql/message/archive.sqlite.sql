-- SQLite has no writable CTEs: copy, then delete, in one transaction.
insert into tenure.archive (
    id, position, queue, lane, outcome, reason, worker, leased_at, attempts, max_attempts, created_at, finished_at,
    expire_at, key, kind, encoding, reference, producer, payload
)
select coalesce(m.origin_id, m.id), m.id, l.queue, m.lane, 'completed', null, m.worker, m.leased_at, m.attempts,
       m.max_attempts, m.created_at, {now}, m.expire_at, m.key, m.kind, m.encoding, m.reference, m.producer, m.payload
from tenure.message m
join tenure.lane l on l.id = m.lane
where m.id = $2
  and m.leased_until > 0
  and ($3 is null or m.attempts = $3)
  and ($4 is null or m.worker = $4)
  and ($5 is null or m.lane = $5)
returning
    position, id, queue, lane, outcome, reason, worker, leased_at, attempts, max_attempts, created_at, finished_at,
    expire_at, key, kind, encoding, reference, producer, payload;
delete from tenure.message
where id = $2
  and leased_until > 0
  and ($3 is null or attempts = $3)
  and ($4 is null or worker = $4)
  and ($5 is null or lane = $5)
