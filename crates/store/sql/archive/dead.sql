select id
from tenure.archive
where queue = $1
  and outcome <> 'completed'
  and (cast($2 as text) is null or kind = $2)
order by id
limit $3
