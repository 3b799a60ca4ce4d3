-- SQLite has no writable CTEs: copy, then delete, in one transaction.
insert into tenure.archive (
    id, position, queue, lane, outcome, reason, worker, leased_at, attempts, max_attempts, created_at, finished_at,
    expire_at, key, kind, encoding, reference, producer, payload
)
select coalesce(origin_id, id), id, (select l.queue from tenure.lane l where l.id = lane), lane, 'completed', null, worker,
       leased_at, attempts, max_attempts, created_at, {now}, expire_at, key, kind, encoding, reference, producer, payload
from tenure.message
where {held $3}
  and exists (select 1 from tenure.lane l where l.id = lane and l.keep_completed);
delete from tenure.message
where {held $3}
returning $8 as n
