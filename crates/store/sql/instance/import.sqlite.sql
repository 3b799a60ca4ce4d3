-- Once for every instance.
insert into tenure.instance (
    id, born, name, version, parent, execution, pinned, custom_status, custom_version, turns, token, leased_until, acked,
    created_at, updated_at
)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0, 0, 0, 0, $10, $11)
on conflict (id) do nothing
returning id
