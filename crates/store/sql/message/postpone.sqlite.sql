-- SQLite has no writable CTEs: copy, then delete, in one transaction.
insert into tenure.scheduled (
    id, lane, due_at, keep_place, created_at, expire_at, origin_id, attempts, max_attempts, buried_id,
    buried_from, reason, source_id, key, kind, encoding, reference, producer, payload
)
select id, lane, coalesce($6, {now} + $7), $8, created_at, expire_at,
       origin_id, attempts, max_attempts, buried_id, buried_from, reason, source_id, key,
       kind, encoding, reference, producer, payload
from tenure.message
where id = $2
  and leased_until > 0
  and ($3 is null or attempts = $3)
  and ($4 is null or worker = $4)
  and ($5 is null or lane = $5);
delete from tenure.message
where id = $2
  and leased_until > 0
  and ($3 is null or attempts = $3)
  and ($4 is null or worker = $4)
  and ($5 is null or lane = $5)
returning $9 as n, lane
