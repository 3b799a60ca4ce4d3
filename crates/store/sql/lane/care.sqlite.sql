-- No arrays and no lateral joins: one part at a time. Otherwise as for PostgreSQL.
select
    $5 as n,
    max(w.id) as last,
    count(*) as seen,
    coalesce(max(case when l.tail_on_expiry and w.leased_until > 0 and w.leased_until < c.now then 1 else 0 end), 0) as lapsed,
    coalesce(max(case
        when w.expire_at < c.now then 1
        when w.token is null and w.leased_until <= c.now and w.attempts >= coalesce(w.max_attempts, l.max_attempts) then 1
        else 0
    end), 0) as doomed
from (
    select id, lane, leased_until, attempts, max_attempts, expire_at, token
    from tenure.message
    where lane = $3
      and lane > 0
      and id >= $4
    order by id
    limit $2
) w
join tenure.lane l on l.id = w.lane
cross join (select {now} as now) c
