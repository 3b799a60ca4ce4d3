-- From whichever is later, now or the deadline: an extension never shortens a lease, and one that had just run out
-- but was not taken yet starts again. A message with a key is leased with its key, and is not extended here. Rows are found as in `complete`.
with clock as materialized (select {now} as now)
update tenure.message m
set leased_until = greatest(m.leased_until, (select now from clock)) + i.extra_us
from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
    as i (id, attempt, worker, lane, token, extra_us, n)
where {held} and m.token is null
returning i.n, m.leased_until, m.lane, m.leased_until - (select now from clock) as remaining
