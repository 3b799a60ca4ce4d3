-- `$3`: only workers that are not stopped and were last heard of at or before now minus this.
select id, name, queue, status, started_at, heartbeat_at, stopped_at
from tenure.worker
where (cast($2 as bigint) is null or queue = $2)
  and (cast($3 as bigint) is null or (status <> 'stopped' and heartbeat_at <= {now} - $3))
order by id
