-- One complete act for as many fetches as wait: the first activities that are free, wanted (tags) and allowed (sessions)
-- are locked and leased, and the session with them. An activity of a session that somebody else owns is passed over; when
-- two claim a new session at once, the second finds it taken and looks again. Sessions are claimed one at a time: with an
-- owner the limit is 1. With each comes which turn its instance has seen, and when this fetch claimed its session, if the
-- owner did not hold it before. Leases are not worth waiting for the disk: a crash only frees them.
with clock as materialized (select {now} as now, set_config('synchronous_commit', 'off', true)),
     ready as materialized (
         select w.due_at, w.id, w.session
         from tenure.work w
         where w.due_at = 0
           and w.leased_until <= (select now from clock)
           and ($6 or (w.tag is null and $7) or w.tag in ($8, $9, $10, $11, $12))
           and (w.session is null or ($4::text is not null and not exists (
               select 1 from tenure.session s
               where s.id = w.session and s.owner <> $4 and s.leased_until > (select now from clock))))
         order by w.id
         limit $13
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
         limit $13
         for update skip locked
     ),
     first as materialized (
         select f.due_at, f.id, f.session
         from (select due_at, id, session from ready union all select due_at, id, session from due) f
         order by f.id
         limit $13
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
         returning s.id, s.active_at
     ),
     leased as (
         update tenure.work w
         set due_at = 0, token = $2 + w.id, leased_until = (select now from clock) + $3, attempts = w.attempts + 1
         from first f
         where w.due_at = f.due_at
           and w.id = f.id
           and (f.session is null or exists (select 1 from claimed))
         returning w.id, w.token, w.attempts, w.item, w.instance, w.session
     )
select l.id, l.token, l.attempts, l.item, i.born, i.turns, (select count(*) from first) as found,
       exists (select 1 from tenure.work w where w.session is not null) as sessions, l.session is not null as in_session,
       (select x.active_at from claimed x
        where not exists (
            select 1 from tenure.session s
            where s.id = x.id and s.owner = $4 and s.leased_until > (select now from clock))) as claimed
from leased l
left join lateral (select x.born, x.turns from tenure.instance x where x.id = l.instance offset 0) i on true
union all
select null, null, null, null, null, null, (select count(*) from first), exists (select 1 from tenure.work w where w.session is not null),
       false, null
where not exists (select 1 from leased)
