select id, username, external_id, email, created_at, updated_at
from tenure.users
where id >= $1
order by id
limit $2
