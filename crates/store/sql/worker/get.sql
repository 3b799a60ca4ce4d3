select id, name, queue, status, started_at, heartbeat_at, stopped_at
from tenure.worker
where id = $1
