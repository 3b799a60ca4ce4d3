update tenure.worker
set status     = $3,
    stopped_at = case when $3 = 'stopped' then {now} end
where id = $2
  and ($4 is null or status = $4)
  and status <> 'stopped'
returning id, name, queue, status, started_at, heartbeat_at, stopped_at
