-- Which of these leased messages have used up their attempts.
select i.n
from unnest($1::bigint[], $2::bigint[]) as i (id, n)
cross join lateral (
    select m.id
    from tenure.message m
    join tenure.lane l on l.id = m.lane
    where m.id = i.id
      and m.leased_until > 0
      and m.attempts >= coalesce(m.max_attempts, l.max_attempts)
    offset 0
) f
