insert into tenure.execution (instance, id, status, output, pinned, events, started_at, completed_at)
select i.instance, i.id, i.status, i.output, i.pinned, i.events, i.started_at, i.completed_at
from unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
    as i (instance, id, status, output, pinned, events, started_at, completed_at)
on conflict (instance, id) do nothing
