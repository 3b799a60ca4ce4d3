-- `min` of two where PostgreSQL says `least`, which passes over nulls.
with blocked as (
    select min(i.leased_until) as at
    from tenure.inbox m
    join tenure.instance i on i.id = m.instance
    where m.visible_at <= {now} and i.leased_until > {now} - $2
)
select (select min(n.at) from (
            select b.at from blocked b
            union all
            select min(m.visible_at) from tenure.inbox m where m.visible_at > {now} - $2
        ) n) - {now} as next,
       (select b.at is not null from blocked b) as blocked
