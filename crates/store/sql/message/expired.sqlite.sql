-- Leases that have run out, for queues whose messages then go to the tail: 10 ms later, because a holder may have stamped
-- the deadline when it received the lease. A clock that is set by tests ($1) is exact.
select m.id, m.attempts, m.attempts >= coalesce(m.max_attempts, l.max_attempts) as exhausted
from tenure.message m
join tenure.lane l on l.id = m.lane
where m.lane = $2
  and m.lane > 0
  and m.id >= $3
  and m.id < $5
  and m.leased_until > 0
  and m.leased_until < {now} - case when $1 is null then 10000 else 0 end
  and l.tail_on_expiry
  and m.key is null
order by m.id
limit $4
