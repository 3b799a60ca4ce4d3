insert into tenure.users (id, username, external_id, email, created_at, updated_at)
values ($2, $3, $4, $5, {now}, {now})
returning created_at, updated_at
