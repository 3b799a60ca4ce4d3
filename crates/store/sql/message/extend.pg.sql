-- From whichever is later, now or the deadline: an extension never shortens a lease, and one that had just run out
-- but was not taken yet starts again.
with clock as materialized (select {now} as now)
update tenure.message m
set leased_until = greatest(m.leased_until, c.now) + i.extra_us
from clock c
cross join unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]) as i (id, attempt, worker, extra_us, n)
where m.id = i.id
  and m.leased_until > 0
  and (i.attempt is null or m.attempts = i.attempt)
  and (i.worker is null or m.worker = i.worker)
returning i.n, m.leased_until, m.lane, m.leased_until - c.now as remaining
