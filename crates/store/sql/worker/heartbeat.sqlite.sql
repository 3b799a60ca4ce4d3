update tenure.worker set heartbeat_at = {now} where id = $2 and status <> 'stopped' returning $3 as n
