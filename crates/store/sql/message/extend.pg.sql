-- From whichever is later, now or the deadline: an extension never shortens a lease, and one that had just run out
-- but was not taken yet starts again. A message with a key is leased with its key, and is not extended here. Rows are found as in `complete`.
-- Rows that another transaction has locked are left out, and the caller asks again for them. A transaction that completes a message may stay
-- open for longer than a lease: an extension that waited for it left all other leases in its statement unextended meanwhile.
with clock as materialized (select {now} as now),
     free as (
         select m.id, i.extra_us, i.n
         from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
             as i (id, attempt, worker, lane, token, extra_us, n)
         join tenure.message m on {held} and m.token is null
         for no key update of m skip locked
     )
update tenure.message m
set leased_until = greatest(m.leased_until, (select now from clock)) + f.extra_us
from free f
where m.id = any (array[f.id])
returning f.n, m.leased_until, m.lane, m.leased_until - (select now from clock) as remaining
