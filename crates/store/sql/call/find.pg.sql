-- The call among these that was carried out, and the places of the items that it did; `whole` when it did all of them.
select c.done is null as whole, d.n
from tenure.call c
left join lateral unnest(c.done) as d (n) on true
where c.token = any ($1::bigint[])
  and not c.closed
