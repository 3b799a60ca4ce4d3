-- Dedupe keys whose window ended after `$1` and up to `$2`, and whose messages are gone. The outer condition is checked
-- again on a row that an enqueue has renewed meanwhile.
delete from tenure.dedupe
where until <= $2
  and (queue, key) in (
      select d.queue, d.key
      from tenure.dedupe d
      where d.until > $1
        and d.until <= $2
        and not exists (select 1 from tenure.message m where m.id = d.id)
        and not exists (select 1 from tenure.message m where m.origin_id = d.id)
        and not exists (select 1 from tenure.scheduled s where s.id = d.id)
        and not exists (select 1 from tenure.scheduled s where s.origin_id = d.id)
      limit $3
  )
