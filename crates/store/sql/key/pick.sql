-- The key of the oldest ready message whose key nobody holds.
select m.key
from tenure.message m
join tenure.lane l on l.id = m.lane
where m.lane = $2
  and m.lane > 0
  and m.key is not null
  and m.leased_until <= {now}
  and not l.paused
  and not exists (select 1 from tenure.worker w where w.id = $3 and w.status <> 'ready')
  and not exists (
      select 1 from tenure.key_lease k where k.lane = m.lane and k.key = m.key and k.leased_until > {now}
  )
order by m.id
limit 1
