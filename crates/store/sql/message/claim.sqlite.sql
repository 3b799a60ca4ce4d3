-- No row locks: the single writer is the lock. No arrays: `$5` and `$6` are the terms of the first message, `$7` how many are
-- wanted; `message/assign` then changes the messages on other terms. Otherwise as for PostgreSQL.
with clock as (select {now} as now),
     lane as (
         select c.now, l.max_attempts, l.keep_completed as keep, c.now + coalesce($5, l.lease_us) as until,
                case when l.paused then -1 when l.tail_on_expiry then 0 else c.now end as horizon
         from clock c
         cross join tenure.lane l
         where l.id = $2
     )
update tenure.message
set leased_until = (select until from lane),
    attempts     = attempts + 1,
    worker       = $6,
    leased_at    = (select now from lane)
where id in (
    select id
    from tenure.message
    where lane = $2
      and lane > 0
      and id >= $3
      and leased_until <= (select horizon from lane)
      and key is null
      and (
          not $4
          or ((expire_at is null or expire_at >= (select now from lane))
              and coalesce(attempts < coalesce(max_attempts, (select max_attempts from lane)), true))
      )
    order by id
    limit $7
)
returning
    id, lane, leased_until, created_at, expire_at, origin_id, attempts, max_attempts,
    buried_id, buried_from, reason, source_id, key, kind, encoding, reference, producer, payload, leased_at,
    attempts > coalesce(max_attempts, (select max_attempts from lane)) as exhausted,
    expire_at < (select now from lane) as expired,
    (select keep from lane) as keep,
    null as slot, null as granted
