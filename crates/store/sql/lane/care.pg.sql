-- What parts of lanes need: where each part ends, how long it is, and whether it has a message that has lost a lease that sends
-- messages to the tail, or one that must die.
select
    i.n,
    max(w.id) as last,
    count(w.id) as seen,
    coalesce(max(case when l.tail_on_expiry and w.leased_until > 0 and w.leased_until < c.now then 1 else 0 end), 0)::bigint as lapsed,
    coalesce(max(case
        when w.expire_at < c.now then 1
        when w.token is null and w.leased_until <= c.now and w.attempts >= coalesce(w.max_attempts, l.max_attempts) then 1
        else 0
    end), 0)::bigint as doomed
from unnest($3::bigint[], $4::bigint[], $5::bigint[]) as i (lane, walked, n)
cross join (select {now} as now) c
left join tenure.lane l on l.id = i.lane
left join lateral (
    select id, leased_until, attempts, max_attempts, expire_at, token
    from tenure.message
    where lane = i.lane
      and lane > 0
      and id >= i.walked
    order by id
    limit $2
) w on true
group by i.n
