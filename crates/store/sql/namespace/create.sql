insert into tenure.namespace (name, description, key_tag, created_at)
values ($2, $3, $4, {now})
returning created_at
