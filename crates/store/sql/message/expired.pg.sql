-- Leases that have run out, for queues whose messages then go to the tail.
select m.id, m.attempts, m.attempts >= coalesce(m.max_attempts, l.max_attempts) as exhausted
from tenure.message m
join tenure.lane l on l.id = m.lane
where m.lane = $2
  and m.lane > 0
  and m.id >= $3
  and m.id < $5
  and m.leased_until > 0
  and m.leased_until < {now}
  and m.key is null
order by m.id
limit $4
for update of m skip locked
