-- As it was elsewhere, except that nobody holds it. One that is already here stays as it is and is not returned.
insert into tenure.instance (
    id, born, name, version, parent, execution, pinned, custom_status, custom_version, turns, token, leased_until, acked,
    created_at, updated_at
)
select i.id, i.born, i.name, i.version, i.parent, i.execution, i.pinned, i.custom_status, i.custom_version, 0, 0, 0, 0,
       i.created_at, i.updated_at
from unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::text[],
            $9::bigint[], $10::bigint[], $11::bigint[])
    as i (id, born, name, version, parent, execution, pinned, custom_status, custom_version, created_at, updated_at)
on conflict (id) do nothing
returning id
