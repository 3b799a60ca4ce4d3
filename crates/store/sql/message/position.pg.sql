-- Where messages are now, by the ids their producers know. Rows are found as in `explain`.
select i.n, m.id
from unnest($1::bigint[], $2::bigint[]) as i (id, n)
cross join lateral (select id from tenure.message where id = i.id and origin_id is null offset 0) m
union all
select i.n, m.id
from unnest($1::bigint[], $2::bigint[]) as i (id, n)
cross join lateral (select id from tenure.message where origin_id = i.id offset 0) m
