-- Only what this fetch tagged is touched: messages that became visible later keep their time and their count. Messages that
-- were parked until their instance's start came are so no longer.
with clock as materialized (select {now} as now),
     freed as (
         update tenure.instance
         set token = 0, leased_until = 0
         where id = $2 and token = $3
         returning id
     ),
     back as (
         update tenure.inbox m
         set token       = 0,
             visible_at  = case when $4::bigint is null then least(m.visible_at, c.now) else c.now + $4 end,
             attempts    = greatest(0, m.attempts - $5::int),
             stray_looks = 0
         from freed f
         cross join clock c
         where m.instance = f.id
           and m.visible_at <= c.now + 3600000000
           and m.token = $3
     )
select count(*) as done from freed
