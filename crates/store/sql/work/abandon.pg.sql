-- The session goes back too, if the fetch of this activity claimed it (at `$6`) and nothing has been done in it since: its
-- owner may not come back for it, and no other worker could take the activity while the session's lease lasts.
with clock as materialized (select {now} as now),
     back as (
         update tenure.work w
         set token        = 0,
             leased_until = 0,
             attempts     = case when $5 then greatest(0, w.attempts - 1) else w.attempts end,
             due_at       = case when $4::bigint > 0 then c.now + $4 else 0 end
         from clock c
         where w.due_at = 0
           and w.id = $2
           and w.token = $3
         returning w.id, w.session
     ),
     released as (
         delete from tenure.session s
         using back b
         where s.id = b.session
           and s.active_at = $6::bigint
           and not exists (
               select 1 from tenure.work w
               where w.session = b.session and w.id <> b.id and w.leased_until > (select now from clock))
     )
select count(*) as done from back
