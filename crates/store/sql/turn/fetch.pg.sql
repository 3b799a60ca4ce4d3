-- One complete act: find the first instance with a visible message that nobody holds, lock it, lease it, tag its visible
-- messages, and return them with its history and its values.
-- `skip locked` sends concurrent fetches to different instances. The lock returns the row as it is now, but everything
-- else is read as it was when the statement began: an instance that had a whole turn in between (`turns`) is left for
-- the next look, because its history would be stale. Leases are not worth waiting for the disk: a crash only frees them.
-- The part tells what a row is: 0 the instance, 1 a message, 2 an event, 3 a value, 9 nothing: how long until
-- something will be, and whether messages wait behind a lease.
with clock as materialized (select {now} as now, set_config('synchronous_commit', 'off', true)),
     picked as materialized (
         select i.id, i.born, i.turns, i.execution, i.name, i.version
         from tenure.inbox m
         join tenure.instance i on i.id = m.instance
         where m.visible_at <= (select now from clock)
           and i.leased_until <= (select now from clock)
           and ($4::bigint is null or i.pinned is null or i.pinned between $4 and $5)
         order by m.visible_at, m.id
         limit 1
         for update of i skip locked
     ),
     fresh as materialized (
         select p.id, p.born, p.execution, p.name, p.version
         from picked p
         where p.turns = (select s.turns from tenure.instance s where s.id = p.id)
     ),
     tagged as (
         update tenure.inbox m
         set token = $2, attempts = m.attempts + 1
         from fresh f
         where m.instance = f.id
           and m.visible_at <= (select now from clock)
         returning m.id, m.attempts, m.item
     ),
     leased as (
         update tenure.instance i
         set token = $2, leased_until = (select now from clock) + $3
         from fresh f
         where i.id = f.id
           and exists (select 1 from tagged)
         returning f.id, f.born, f.execution, f.name, f.version
     )
select 0 as part, l.born as id, l.execution as n, l.id as a, l.name as b, l.version as c
from leased l
union all
select 1, t.id, t.attempts, t.item, null, null
from tagged t
union all
select 2, h.id, null, h.data, null, null
from leased l
join tenure.history h on h.instance = l.id and h.execution = l.execution
where h.id > coalesce((
    select k.last
    from unnest($6::text[], $7::bigint[], $8::bigint[], $9::bigint[]) as k (instance, born, execution, last)
    where k.instance = l.id and k.born = l.born and k.execution = l.execution
), 0)
union all
select 3, null, k.updated_at, k.key, k.value, null
from leased l
join tenure.kv k on k.instance = l.id
where k.value is not null
union all
select 9,
       least(
           (select min(m.visible_at) from tenure.inbox m where m.visible_at > c.now),
           (select min(i.leased_until)
            from tenure.inbox m
            join tenure.instance i on i.id = m.instance
            where m.visible_at <= c.now and i.leased_until > c.now)
       ) - c.now,
       (exists (
           select 1
           from tenure.inbox m
           join tenure.instance i on i.id = m.instance
           where m.visible_at <= c.now and ($4 is null or i.pinned is null or i.pinned between $4 and $5)
       ))::int,
       null, null, null
from clock c
where not exists (select 1 from leased)
