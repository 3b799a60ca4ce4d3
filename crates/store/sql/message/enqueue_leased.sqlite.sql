-- As for PostgreSQL; the id comes from `message/reserve`.
with clock as (select {now} as now),
     lane as (
         select c.now, l.id, l.expire_us, l.keep_completed as keep,
                case
                    when l.paused then 0
                    when cast($6 as bigint) is not null
                         and not exists (select 1 from tenure.worker w where w.id = $6 and w.status = 'ready') then 0
                    when exists (
                        select 1
                        from tenure.message
                        where lane = $2
                          and lane > 0
                          and id >= $3
                          and leased_until <= case when l.tail_on_expiry then 0 else c.now end
                          and key is null
                    ) then 0
                    else c.now + coalesce($4, l.lease_us)
                end as until
         from clock c
         cross join tenure.lane l
         where l.id = $2
     )
insert into tenure.message (
    id, lane, leased_until, worker, leased_at, created_at, expire_at, attempts, max_attempts, kind, encoding, reference, producer, payload
)
select $5, id, until, case when until > 0 then $6 end, case when until > 0 then now end, now, now + coalesce($7, expire_us), until > 0,
       $8, $9, $10, $11, $12, $13
from lane
returning id, created_at, expire_at, leased_until, (select keep_completed from tenure.lane where id = $2) as keep
