-- Rows of keys that have been free for five minutes and have no message. The row of a key that has one stays: it says which
-- messages the last holder was given, and the next claim leases them again only because of it.
delete from tenure.key_lease
where leased_until <= {now} - 300000000
  and (lane, key) in (
      select k.lane, k.key
      from tenure.key_lease k
      where k.lane = $2
        and k.lane > 0
        and k.leased_until <= {now} - 300000000
        and not exists (select 1 from tenure.message m where m.lane = k.lane and m.key = k.key)
      limit $3
  )
