-- From whichever is later, now or the deadline: an extension never shortens a lease, and one that had just run out
-- but was not taken yet starts again. Rows are found as in `complete`.
with clock as materialized (select {now} as now)
update tenure.message m
set leased_until = greatest(m.leased_until, (select now from clock)) + held.extra_us
from (
    select i.n, i.extra_us, f.row
    from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[]) as i (id, attempt, worker, lane, extra_us, n)
    cross join lateral {held} f
) held
where m.ctid = held.row
returning held.n, m.leased_until, m.lane, m.leased_until - (select now from clock) as remaining
