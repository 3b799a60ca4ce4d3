insert into tenure.role_binding (id, namespace, user_id, role_id, created_at)
values ($2, $3, $4, $5, {now})
returning created_at
