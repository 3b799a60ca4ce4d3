-- The key of the oldest message whose key is free, how long the lane leases it, and how long it takes until a held or resting
-- key becomes free or a scheduled message is due, if there is one: a claim that finds no key waits exactly so long. `stopped`
-- when the worker was stopped or is not there any more. `$4` skips messages that have run out of attempts or time, while this
-- process buries a backlog of them beside its claims (docs/adr/0002).
select
    (
        select m.key
        from tenure.message m
        join tenure.lane l on l.id = m.lane
        where m.lane = $2
          and m.lane > 0
          and m.key is not null
          and (
              not $4
              or ((m.expire_at is null or m.expire_at >= {now})
                  and coalesce(m.attempts < coalesce(m.max_attempts, l.max_attempts), true))
          )
          and not l.paused
          and (cast($3 as bigint) is null or exists (select 1 from tenure.worker w where w.id = $3 and w.status = 'ready'))
          and m.key not in (
              select k.key from tenure.key_lease k where k.lane = $2 and k.lane > 0 and k.leased_until > {now}
          )
        order by m.id
        limit 1
    ) as key,
    (select l.lease_us from tenure.lane l where l.id = $2) as lease,
    (select min(k.leased_until) from tenure.key_lease k where k.lane = $2 and k.lane > 0 and k.leased_until > {now}) - {now}
        as free_in,
    (select min(s.due_at) from tenure.scheduled s where s.lane = $2 and s.lane > 0) - {now} as due_in,
    cast($3 as bigint) is not null
        and not exists (select 1 from tenure.worker w where w.id = $3 and w.status <> 'stopped') as stopped
