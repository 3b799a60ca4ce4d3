insert into tenure.role (id, namespace, name, permissions, created_at)
values ($2, $3, $4, $5, {now})
returning created_at
