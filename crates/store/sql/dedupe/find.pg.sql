select i.n, d.id
from unnest($1::bigint[], $2::text[], $3::bigint[]) as i (queue, key, n)
join tenure.dedupe d on d.queue = i.queue and d.key = i.key
