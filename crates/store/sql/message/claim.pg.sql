-- One complete act: find the first free messages from the cursor on, lock them, lease them, return them.
-- The rows are located by ctid, so the plan is right whatever the statistics say. A message that has run out of attempts
-- or time is leased too, marked doomed, and buried by the caller under its fence; `$7` skips such messages instead, while
-- this process buries a backlog of them beside its claims (docs/adr/0002). A worker that is suspended, stopped or unknown
-- leases nothing.
with clock as materialized (select {now} as now),
     lane as materialized (
         select c.now, l.max_attempts, l.keep_completed as keep, c.now + coalesce($5, l.lease_us) as until,
                case
                    when l.paused then -1
                    when cast($6 as bigint) is not null
                         and not exists (select 1 from tenure.worker w where w.id = $6 and w.status = 'ready') then -1
                    when l.tail_on_expiry then 0
                    else c.now
                end as horizon
         from clock c
         cross join tenure.lane l
         where l.id = $2
     )
update tenure.message m
set leased_until = (select until from lane),
    attempts     = m.attempts + 1,
    worker       = $6,
    leased_at    = (select now from lane)
where m.ctid = any (array(
    select ctid
    from tenure.message
    where lane = $2
      and lane > 0
      and id >= $3
      and leased_until <= (select horizon from lane)
      and key is null
      and (
          not $7
          or ((expire_at is null or expire_at >= (select now from lane))
              and coalesce(attempts < coalesce(max_attempts, (select max_attempts from lane)), true))
      )
    order by id
    limit $4
    for update skip locked
))
returning
    m.id, m.lane, m.leased_until, m.created_at, m.expire_at, m.origin_id, m.attempts, m.max_attempts,
    m.buried_id, m.buried_from, m.reason, m.source_id, m.key, m.kind, m.encoding, m.reference, m.producer, m.payload, m.leased_at,
    m.attempts > coalesce(m.max_attempts, (select max_attempts from lane)) as exhausted,
    m.expire_at < (select now from lane) as expired,
    (select keep from lane) as keep
