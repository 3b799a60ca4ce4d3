insert into tenure.api_key (id, user_id, scope, name, prefix, hash, expires_at, last_used_at, created_at)
values ($2, $3, $4, $5, $6, $7, $8, null, {now})
returning created_at
