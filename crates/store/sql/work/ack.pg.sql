-- Ends activities whose leases are still held: each row goes, its completion enters the instance's inbox, and its session
-- has been active. The instance has had its row since the activity was asked for; if it was deleted, nobody waits for the
-- completion. Merged calls share a transaction; the ordinal tells which were done (part 0).
-- A worker that ends an activity comes back for the next one at once: that is leased here (part 1), in the same commit, if
-- it has no session.
with clock as materialized (select {now} as now),
     gone as (
         delete from tenure.work w
         using clock c, unnest($13::bigint[], $14::bigint[], $15::text[], $16::text[], $17::bigint[]) as i (id, token, instance, item, n)
         where w.due_at = 0
           and w.id = i.id
           and w.token = i.token
           and w.leased_until > c.now
         returning i.n, i.instance, i.item, w.session, c.now
     ),
{with $12}
     active as (
         update tenure.session s
         set active_at = g.now
         from gone g
         where s.id = g.session
           and s.leased_until > g.now
     ),
{end}
{with $2}
     ready as materialized (
         select w.id
         from tenure.work w
         where w.due_at = 0
           and w.leased_until <= (select now from clock)
           and w.session is null
           and ($5 or (w.tag is null and $6) or w.tag in ($7, $8, $9, $10, $11))
         order by w.id
         limit $2
         for update skip locked
     ),
     leased as (
         update tenure.work w
         set token = $3 + w.id, leased_until = (select now from clock) + $4, attempts = w.attempts + 1
         from ready r
         where w.due_at = 0
           and w.id = r.id
         returning w.id, w.token, w.attempts, w.item, w.instance
     ),
{end}
     sent as (
         insert into tenure.inbox (instance, visible_at, attempts, token, item)
         select g.instance, g.now, 0, 0, g.item
         from gone g
         where g.item is not null
           and exists (select 1 from tenure.instance x where x.id = g.instance)
         order by g.n
     )
select 0 as part, g.n as id, null::bigint as token, null::bigint as attempts, null::text as item,
       null::bigint as born, null::bigint as turns
from gone g
{with $2}
union all
select 1, l.id, l.token, l.attempts, l.item, i.born, i.turns
from leased l
left join lateral (select x.born, x.turns from tenure.instance x where x.id = l.instance offset 0) i on true
{end}
