select id, namespace, name, permissions, created_at
from tenure.role
where namespace = $1
  and name = $2
