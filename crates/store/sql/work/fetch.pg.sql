-- One complete act: the first activity that is free, wanted (tags) and allowed (sessions) is locked and leased, and its
-- session with it. An activity of a session that somebody else owns is passed over; when two claim a new session at once,
-- the second finds it taken and looks again. Leases are not worth waiting for the disk: a crash only frees them.
-- Part 1 is the activity, part 9 nothing: how long until something will be, and whether to look again at once.
with clock as materialized (select {now} as now, set_config('synchronous_commit', 'off', true)),
     picked as materialized (
         select w.due_at, w.id, w.session
         from tenure.work w
         where w.due_at = 0
           and w.leased_until <= (select now from clock)
           and ($6 or (w.tag is null and $7) or w.tag in ($8, $9, $10, $11, $12))
           and (w.session is null or ($4::text is not null and not exists (
               select 1 from tenure.session s
               where s.id = w.session and s.owner <> $4 and s.leased_until > (select now from clock))))
         order by w.id
         limit 1
         for update skip locked
     ),
     due as materialized (
         select w.due_at, w.id, w.session
         from tenure.work w
         where w.due_at > 0
           and w.due_at <= (select now from clock)
           and ($6 or (w.tag is null and $7) or w.tag in ($8, $9, $10, $11, $12))
           and (w.session is null or ($4::text is not null and not exists (
               select 1 from tenure.session s
               where s.id = w.session and s.owner <> $4 and s.leased_until > (select now from clock))))
         order by w.due_at, w.id
         limit 1
         for update skip locked
     ),
     first as materialized (
         select f.due_at, f.id, f.session
         from (select due_at, id, session from picked union all select due_at, id, session from due) f
         order by f.id
         limit 1
     ),
     claimed as (
         insert into tenure.session as s (id, owner, leased_until, active_at)
         select f.session, $4, c.now + $5, c.now
         from first f
         cross join clock c
         where f.session is not null
         on conflict (id) do update
         set owner = excluded.owner, leased_until = excluded.leased_until, active_at = excluded.active_at
         where s.owner = excluded.owner or s.leased_until <= excluded.active_at
         returning s.id
     ),
     leased as (
         update tenure.work w
         set due_at = 0, token = $2, leased_until = (select now from clock) + $3, attempts = w.attempts + 1
         from first f
         where w.due_at = f.due_at
           and w.id = f.id
           and (f.session is null or exists (select 1 from claimed))
         returning w.id, w.attempts, w.item
     )
select 1 as part, l.id, l.attempts as n, l.item as a
from leased l
union all
select 9,
       least(
           (select min(w.due_at) from tenure.work w where w.due_at > c.now),
           (select min(w.leased_until) from tenure.work w where w.due_at = 0 and w.leased_until > c.now),
           (select min(s.leased_until)
            from tenure.work w
            join tenure.session s on s.id = w.session
            where w.session is not null and w.leased_until <= c.now and s.leased_until > c.now)
       ) - c.now,
       (exists (select 1 from first))::int,
       null
from clock c
where not exists (select 1 from leased)
