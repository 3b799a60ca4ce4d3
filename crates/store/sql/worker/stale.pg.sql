-- Locked, so that a heartbeat on its way waits until it is decided whether it came too late.
select id
from tenure.worker
where status <> 'stopped'
  and heartbeat_at <= {now} - $2
order by id
for update
