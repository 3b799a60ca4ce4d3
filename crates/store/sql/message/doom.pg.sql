-- Takes hold of what must die: expired messages, leased or not, and those whose last allowed lease has run out.
-- Messages that were handed out with their key are left to the next claim of the key, which knows which of them were seen.
-- `$5`: instead, whatever was delivered that often and is not leased now. The short lease is the fence under which the same transaction buries them.
update tenure.message m
set leased_until = {now} + 60000000
where m.ctid = any (array(
    select d.ctid
    from tenure.message d
    join tenure.lane l on l.id = d.lane
    where d.lane = $2
      and d.lane > 0
      and d.id >= $3
      and d.id < $6
      and (
          (d.expire_at < {now} and cast($5 as bigint) is null)
          or (d.token is null and d.leased_until <= {now} and d.attempts >= coalesce($5, d.max_attempts, l.max_attempts))
      )
    order by d.id
    limit $4
    for update of d skip locked
))
returning id, attempts, expire_at < {now} and cast($5 as bigint) is null as expired, origin_id
