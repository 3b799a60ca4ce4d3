-- The messages of a key's lease.
select id, attempts
from tenure.message
where lane = $1
  and key = $2
  and id <= $3
  and token = $4
order by id
