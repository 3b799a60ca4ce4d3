select id, username, external_id, email, created_at, updated_at
from tenure.users
where id = $1
