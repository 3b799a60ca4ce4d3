update tenure.worker
set status     = cast($3 as text),
    stopped_at = case when cast($3 as text) = 'stopped' then {now} end
where id = $2
  and (cast($4 as text) is null or status = $4)
  and status <> 'stopped'
returning id, name, queue, status, started_at, heartbeat_at, stopped_at
