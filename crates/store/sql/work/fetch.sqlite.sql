-- The single writer is the lock; one activity at a time. The token marks what this fetch leased; the session follows
-- it, at the same time: the clock may have moved between two steps.
update tenure.work
set due_at = 0, token = $2, leased_until = {now} + $3, attempts = attempts + 1
where id = (
    select min(first.id)
    from (
        select picked.id
        from (
            select w.id
            from tenure.work w
            where w.due_at = 0
              and w.leased_until <= {now}
              and ($6 or (w.tag is null and $7) or w.tag in ($8, $9, $10, $11, $12))
              and (w.session is null or ($4 is not null and not exists (
                  select 1 from tenure.session s
                  where s.id = w.session and s.owner <> $4 and s.leased_until > {now})))
            order by w.id
            limit 1
        ) picked
        union all
        select due.id
        from (
            select w.id
            from tenure.work w
            where w.due_at > 0
              and w.due_at <= {now}
              and ($6 or (w.tag is null and $7) or w.tag in ($8, $9, $10, $11, $12))
              and (w.session is null or ($4 is not null and not exists (
                  select 1 from tenure.session s
                  where s.id = w.session and s.owner <> $4 and s.leased_until > {now})))
            order by w.due_at, w.id
            limit 1
        ) due
    ) first
);
select w.id, w.token, w.attempts, w.item, i.born, i.turns, $13 as found,
       exists (select 1 from tenure.work x where x.session is not null) as sessions, w.session is not null as in_session,
       case when w.session is not null and not exists (
           select 1 from tenure.session s
           where s.id = w.session and s.owner = $4 and s.leased_until > w.leased_until - $3)
       then w.leased_until - $3 end as claimed
from tenure.work w
left join tenure.instance i on i.id = w.instance
where w.token = $2 and w.token <> 0
union all
select null, null, null, null, null, null, 0, exists (select 1 from tenure.work x where x.session is not null), 0, null
where not exists (select 1 from tenure.work w where w.token = $2 and w.token <> 0);
insert into tenure.session (id, owner, leased_until, active_at)
select w.session, $4, w.leased_until - $3 + $5, w.leased_until - $3
from tenure.work w
where w.token = $2 and w.token <> 0 and w.session is not null
on conflict (id) do update
set owner = excluded.owner, leased_until = excluded.leased_until, active_at = excluded.active_at
