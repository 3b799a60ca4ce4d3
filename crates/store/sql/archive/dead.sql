select id
from tenure.archive
where queue = $1
  and outcome <> 'completed'
  and ($2 is null or kind = $2)
order by id
limit $3
