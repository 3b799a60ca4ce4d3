select r.permissions
from tenure.role_binding b
join tenure.role r on r.id = b.role_id
where b.user_id = $1
  and b.namespace = $2
