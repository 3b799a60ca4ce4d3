-- One complete act for as many fetches as wait: find the first instances with a visible message that nobody holds, lock
-- them, lease them, tag their visible messages, and return them with their histories and values.
-- The lateral look-up cannot be turned round: whatever the statistics say, no plan reads all instances. `skip locked`
-- sends concurrent fetches to different instances. The lock returns the row as it is now, but everything else is read as it
-- was when the statement began: an instance that had a whole turn in between (`turns`) is left for the next look, because
-- its history would be stale. While an instance has not been started, its parked messages (`stray_looks`) come with the others
-- before their time, so that all of them are in the first turn. What a caller knows must be there: after a fail-over it may be lost. Leases are not worth waiting for the disk: a crash only frees them.
-- The part tells what a row is: 0 an instance (with how many messages were looked at, and after which event its history
-- begins), 1 a message, 2 an event, 3 a value.
with clock as materialized (select {now} as now, set_config('synchronous_commit', 'off', true)),
     picked as materialized (
         select i.id, i.born, i.turns, i.execution, i.name, i.version
         from tenure.inbox m
         cross join lateral (
             select x.id, x.born, x.turns, x.execution, x.name, x.version
             from tenure.instance x
             where x.id = m.instance
               and x.leased_until <= (select now from clock)
               and ($4::bigint is null or x.pinned is null or x.pinned between $4 and $5)
             for update skip locked
         ) i
         where m.visible_at <= (select now from clock)
         order by m.visible_at, m.id
         limit $6
     ),
     fresh as materialized (
         select distinct p.id, p.born, p.turns, p.execution, p.name, p.version
         from picked p
         where p.turns = (select s.turns from tenure.instance s where s.id = p.id)
     ),
     tagged as (
         update tenure.inbox m
         set token = $2 + f.born, attempts = m.attempts + 1
         from fresh f
         where m.instance = f.id
           -- One range of the index: no timer of a started instance is looked at.
           and m.visible_at <= (select now from clock) + case when f.name is null then 3600000000 else 0 end
           and (m.visible_at <= (select now from clock) or m.stray_looks > 0)
         returning m.instance, m.id, m.attempts, m.item
     ),
     leased as (
         update tenure.instance i
         set token = $2 + f.born, leased_until = (select now from clock) + $3
         from fresh f
         where i.id = f.id
           and exists (select 1 from tagged t where t.instance = f.id)
         returning f.id, i.token, f.born, f.turns, f.execution, f.name, f.version, coalesce((
             select k.last
             from unnest($7::text[], $8::bigint[], $9::bigint[], $10::bigint[]) as k (instance, born, execution, last)
             where k.instance = f.id and k.born = f.born and k.execution = f.execution
               and exists (select 1 from tenure.history h where h.instance = f.id and h.execution = f.execution and h.id = k.last)
         ), 0) as known
     )
select 0 as part, l.id as instance, l.born as id, l.execution as n, (select count(*) from picked) as m, l.known as k,
       l.token, l.turns, l.name as a, l.version as b
from leased l
union all
select 1, t.instance, t.id, t.attempts, null, null, null, null, t.item, null
from tagged t
union all
select 2, l.id, h.id, null, null, null, null, null, h.data, null
from leased l
join tenure.history h on h.instance = l.id and h.execution = l.execution and h.id > l.known
union all
select 3, l.id, null, v.updated_at, null, null, null, null, v.key, v.value
from leased l
join tenure.kv v on v.instance = l.id
