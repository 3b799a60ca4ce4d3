-- No row locks: the single writer is the lock.
select id
from tenure.worker
where status <> 'stopped'
  and heartbeat_at <= {now} - $2
order by id
