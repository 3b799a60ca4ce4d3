-- Once for every value.
insert into tenure.kv (instance, key, value, updated_at, drafted, draft, draft_at)
values ($1, $2, $3, $4, $5, $6, $7)
on conflict (instance, key) do nothing
