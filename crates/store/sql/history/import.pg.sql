insert into tenure.history (instance, execution, id, data)
select i.instance, i.execution, i.id, i.data
from unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[]) as i (instance, execution, id, data)
on conflict (instance, execution, id) do nothing
