-- The first message that a former holder of a key has left: it takes one after the other, so it has seen no other.
select min(id) as first
from tenure.message
where lane = $1
  and key = $2
  and id <= $3
  and leased_until > 0
