select id
from tenure.instance
where parent = $1
  and name is not null
order by id
