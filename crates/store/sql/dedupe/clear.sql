-- Dedupe keys of a queue whose messages are gone, whatever their windows say. A key that an enqueue has renewed meanwhile has
-- another message, and stays.
delete from tenure.dedupe
where (queue, key, id) in (
    select d.queue, d.key, d.id
    from tenure.dedupe d
    where d.queue = $1
      and not exists (select 1 from tenure.message m where m.id = d.id)
      and not exists (select 1 from tenure.message m where m.origin_id = d.id)
      and not exists (select 1 from tenure.scheduled s where s.id = d.id)
      and not exists (select 1 from tenure.scheduled s where s.origin_id = d.id)
    limit $2
)
