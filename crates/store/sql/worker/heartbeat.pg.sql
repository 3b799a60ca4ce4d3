update tenure.worker w
set heartbeat_at = {now}
from unnest($2::bigint[], $3::bigint[]) as i (id, n)
where w.id = i.id and w.status <> 'stopped'
returning i.n
