select b.id, b.namespace, b.user_id, b.role_id, b.created_at
from tenure.role_binding b
where b.namespace = $1
  and b.id >= $2
  and (cast($3 as text) is null or b.user_id = $3)
order by b.id
limit $4
