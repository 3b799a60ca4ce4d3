insert into tenure.kv (instance, key, value, updated_at, drafted, draft, draft_at)
select i.instance, i.key, i.value, i.updated_at, i.drafted, i.draft, i.draft_at
from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::boolean[], $6::text[], $7::bigint[])
    as i (instance, key, value, updated_at, drafted, draft, draft_at)
on conflict (instance, key) do nothing
