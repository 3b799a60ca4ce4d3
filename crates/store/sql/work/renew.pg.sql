with clock as materialized (select {now} as now),
     kept as (
         update tenure.work w
         set leased_until = c.now + $4
         from clock c
         where w.due_at = 0
           and w.id = $2
           and w.token = $3
           and w.leased_until > c.now
         returning w.session
     ),
     active as (
         update tenure.session s
         set active_at = c.now
         from kept k
         cross join clock c
         where s.id = k.session
           and s.leased_until > c.now
     )
select count(*) as done from kept
