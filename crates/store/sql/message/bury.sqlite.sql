-- SQLite has no writable CTEs: the same moves, one after the other in one transaction. The archive first; what is
-- then still leased has a dead queue to go to.
insert into tenure.archive (
    id, position, queue, lane, outcome, reason, worker, leased_at, attempts, max_attempts, created_at, finished_at,
    expire_at, key, kind, encoding, reference, producer, payload
)
select coalesce(m.origin_id, m.id), m.id, l.queue, m.lane, $7, $8, m.worker, m.leased_at, m.attempts - $9,
       m.max_attempts, m.created_at, {now}, m.expire_at, m.key, m.kind, m.encoding, m.reference, m.producer, m.payload
from tenure.message m
join tenure.lane l on l.id = m.lane
where m.id = $2
  and m.leased_until > 0
  and ($3 is null or m.attempts = $3)
  and ($4 is null or m.worker = $4)
  and ($5 is null or m.lane = $5)
  and l.dead_lane is null;
delete from tenure.message
where id = $2
  and leased_until > 0
  and ($3 is null or attempts = $3)
  and ($4 is null or worker = $4)
  and ($5 is null or lane = $5)
  and id in (select position from tenure.archive where id = coalesce(tenure.message.origin_id, tenure.message.id))
returning $10 as n, null as lane, null as id;
update tenure.message
set id = $6,
    lane = (select l.dead_lane from tenure.lane l where l.id = tenure.message.lane),
    expire_at = {now} + (select d.expire_us from tenure.lane l join tenure.lane d on d.id = l.dead_lane
                         where l.id = tenure.message.lane),
    buried_from = (select q.name from tenure.lane l join tenure.queue q on q.id = l.queue where l.id = tenure.message.lane),
    buried_id = id, reason = $8, leased_until = 0, created_at = {now}, origin_id = null, worker = null, attempts = 0,
    max_attempts = null, source_id = null
where id = $2
  and leased_until > 0
  and ($3 is null or attempts = $3)
  and ($4 is null or worker = $4)
  and ($5 is null or lane = $5)
returning $10 as n, lane, id
