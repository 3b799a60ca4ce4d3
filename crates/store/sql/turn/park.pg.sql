-- Ends a look at messages whose instance has not been started: they are parked, uncounted, and their instance is free. A
-- parked message comes with the instance's next turn, or is looked at again after a delay that doubles with its own looks.
-- One that came with another message before its time keeps its time and its looks; one whose looks are used up is dropped.
with clock as materialized (select {now} as now),
     freed as (
         update tenure.instance
         set token = 0, leased_until = 0
         where id = $2 and token = $3
         returning id
     ),
     dropped as (
         delete from tenure.inbox m
         using freed f, clock c
         where m.instance = f.id
           and m.visible_at <= c.now
           and m.token = $3
           and m.stray_looks >= $6
         returning m.id
     ),
     parked as (
         update tenure.inbox m
         set token       = 0,
             attempts    = greatest(0, m.attempts - 1),
             stray_looks = m.stray_looks + (m.visible_at <= c.now)::int,
             visible_at  = case when m.visible_at <= c.now then c.now + least($5::bigint, $4::bigint << least(m.stray_looks, 16))
                                else m.visible_at end
         from freed f
         cross join clock c
         where m.instance = f.id
           and m.visible_at <= c.now + 3600000000
           and m.token = $3
           and (m.visible_at > c.now or m.stray_looks < $6)
         returning m.visible_at
     )
select (select count(*) from dropped) as dropped,
       (select min(p.visible_at) from parked p) - c.now as next,
       exists (select 1 from tenure.inbox m where m.instance = $2 and m.token <> $3 and m.visible_at <= c.now) as more
from clock c
