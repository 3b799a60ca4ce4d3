-- How long until a message can be fetched, if nothing happens before, and whether some wait behind somebody's lease. What
-- has become so within the last `$2` counts too: it came after the last look.
select least(
           (select min(m.visible_at) from tenure.inbox m where m.visible_at > c.now - $2),
           b.leased_until
       ) - c.now as next,
       b.leased_until is not null as blocked
from (select {now} as now) c
cross join lateral (
    select min(i.leased_until) as leased_until
    from tenure.inbox m
    cross join lateral (select x.leased_until from tenure.instance x where x.id = m.instance offset 0) i
    where m.visible_at <= c.now and i.leased_until > c.now - $2
) b
