insert into tenure.worker (name, queue, status, started_at, heartbeat_at, stopped_at)
values ($2, $3, 'ready', {now}, {now}, null)
returning id, name, queue, status, started_at, heartbeat_at, stopped_at
