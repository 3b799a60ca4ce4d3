insert into tenure.event (stream, execution, id, created_at, data)
select $2, $3, i.id, {now}, i.data
from unnest($4::bigint[], $5::bytea[]) as i (id, data)
