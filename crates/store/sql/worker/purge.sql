-- Workers that stopped `$2` ago, and with `$3` those that were not heard of for so long. The outer condition is checked again
-- on a row that a heartbeat has changed meanwhile.
delete from tenure.worker
where ((status = 'stopped' and stopped_at <= {now} - $2) or (status <> 'stopped' and heartbeat_at <= {now} - $3))
  and id in (
      select w.id
      from tenure.worker w
      where (w.status = 'stopped' and w.stopped_at <= {now} - $2)
         or (w.status <> 'stopped' and w.heartbeat_at <= {now} - $3)
      limit $4
  )
