-- One row a key, however many messages it has.
with clock as materialized (select {now} as now)
update tenure.key_lease k
set leased_until = greatest(k.leased_until, (select now from clock)) + $2
from unnest($3::bigint[], $4::bigint[]) as i (token, n)
where k.token = any (array[i.token])
returning i.n, k.leased_until
