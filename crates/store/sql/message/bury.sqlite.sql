-- SQLite has no writable CTEs: the same moves, one after the other in one transaction. The archive first; what is
-- then still leased has a dead queue to go to.
insert into tenure.archive (
    id, position, queue, lane, outcome, reason, worker, leased_at, attempts, max_attempts, created_at, finished_at,
    expire_at, key, kind, encoding, reference, producer, payload
)
select coalesce(origin_id, id), id, (select l.queue from tenure.lane l where l.id = lane), lane, $9, $10, worker, leased_at,
       attempts - $11, max_attempts, created_at, {now}, expire_at, key, kind, encoding, reference, producer, payload
from tenure.message
where {held $3}
  and exists (select 1 from tenure.lane l where l.id = lane and l.dead_lane is null);
delete from tenure.message
where {held $3}
  and id in (select position from tenure.archive where id = coalesce(tenure.message.origin_id, tenure.message.id))
returning $12 as n, null as lane, null as id;
update tenure.message
set id = $8,
    lane = (select l.dead_lane from tenure.lane l where l.id = tenure.message.lane),
    expire_at = {now} + (select d.expire_us from tenure.lane l join tenure.lane d on d.id = l.dead_lane
                         where l.id = tenure.message.lane),
    buried_from = (select q.name from tenure.lane l join tenure.queue q on q.id = l.queue where l.id = tenure.message.lane),
    buried_id = id, reason = $10, leased_until = 0, created_at = {now}, origin_id = null, worker = null, attempts = 0,
    max_attempts = null, source_id = null
where {held $3}
returning $12 as n, lane, id
