select id, created_at, data
from tenure.event
where stream = $1
  and execution = $2
  and id >= $3
order by id
limit $4
