select i.n
from unnest($1::bigint[], $2::bigint[]) as i (id, n)
join tenure.worker w on w.id = i.id
where w.status <> 'stopped'
