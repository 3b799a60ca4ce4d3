-- A new incarnation takes the name; the old one learns at its next heartbeat that it was stopped.
update tenure.worker
set status = 'stopped', stopped_at = {now}
where name = $2 and status <> 'stopped'
returning id
