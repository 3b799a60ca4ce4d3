select id, attempts
from tenure.message
where lane = $1
  and key = $2
  and leased_until > 0
order by id
