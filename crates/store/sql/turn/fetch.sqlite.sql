-- The single writer is the lock, so there is nothing to skip and nothing can be stale.
update tenure.instance
set token = $2, leased_until = {now} + $3
where id = (
    select i.id
    from tenure.inbox m
    join tenure.instance i on i.id = m.instance
    where m.visible_at <= {now}
      and i.leased_until <= {now}
      and ($4 is null or i.pinned is null or i.pinned between $4 and $5)
    order by m.visible_at, m.id
    limit 1
);
update tenure.inbox
set token = $2, attempts = attempts + 1
where instance = (select i.id from tenure.instance i where i.token = $2 and i.token <> 0)
  and visible_at <= {now};
with leased as (
    select i.id, i.born, i.execution, i.name, i.version
    from tenure.instance i
    where i.token = $2 and i.token <> 0
)
select 0 as part, l.born as id, l.execution as n, l.id as a, l.name as b, l.version as c
from leased l
union all
select 1, m.id, m.attempts, m.item, null, null
from leased l
join tenure.inbox m on m.instance = l.id and m.token = $2
union all
select 2, h.id, null, h.data, null, null
from leased l
join tenure.history h on h.instance = l.id and h.execution = l.execution
union all
select 3, null, k.updated_at, k.key, k.value, null
from leased l
join tenure.kv k on k.instance = l.id
where k.value is not null
union all
select 9,
       (select min(next.at) - {now}
        from (
            select min(m.visible_at) as at from tenure.inbox m where m.visible_at > {now}
            union all
            select min(i.leased_until)
            from tenure.inbox m
            join tenure.instance i on i.id = m.instance
            where m.visible_at <= {now} and i.leased_until > {now}
        ) next),
       exists (
           select 1
           from tenure.inbox m
           join tenure.instance i on i.id = m.instance
           where m.visible_at <= {now} and ($4 is null or i.pinned is null or i.pinned between $4 and $5)
       ),
       null, null, null
where not exists (select 1 from leased)
