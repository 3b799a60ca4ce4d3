select id, namespace, name, permissions, created_at
from tenure.role
where namespace = $1
  and id >= $2
order by id
limit $3
