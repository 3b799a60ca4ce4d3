update tenure.dedupe d
set id = i.id
from unnest($1::bigint[], $2::text[], $3::bigint[]) as i (queue, key, id)
where d.queue = i.queue and d.key = i.key
