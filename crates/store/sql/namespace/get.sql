select name, description, key_tag, created_at
from tenure.namespace
where name = $1
