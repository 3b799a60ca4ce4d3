insert into tenure.namespace (name, description, key_tag, created_at)
values ($2, '', '', {now})
on conflict (name) do nothing
