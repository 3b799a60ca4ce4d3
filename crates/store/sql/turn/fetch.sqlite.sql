-- The single writer is the lock, so there is nothing to skip and nothing can be stale; one instance at a time, and always
-- the whole history, which costs nothing to send.
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
  and visible_at <= {now} + (
      select case when i.name is null then 3600000000 else 0 end from tenure.instance i where i.token = $2 and i.token <> 0)
  and (visible_at <= {now} or stray_looks > 0);
with leased as (
    select i.id, i.born, i.turns, i.execution, i.name, i.version
    from tenure.instance i
    where i.token = $2 and i.token <> 0
)
select 0 as part, l.id as instance, l.born as id, l.execution as n, $6 as m, 0 as k, $2 as token, l.turns, l.name as a, l.version as b
from leased l
union all
select 1, l.id, m.id, m.attempts, null, null, null, null, m.item, null
from leased l
join tenure.inbox m on m.instance = l.id and m.token = $2
                   and m.visible_at <= {now} + case when l.name is null then 3600000000 else 0 end
union all
select 2, l.id, h.id, null, null, null, null, null, h.data, null
from leased l
join tenure.history h on h.instance = l.id and h.execution = l.execution
union all
select 3, l.id, null, v.updated_at, null, null, null, null, v.key, v.value
from leased l
join tenure.kv v on v.instance = l.id
