-- A key is taken while its window lasts, and beyond it while its message still lives. Two steps, because Turso does not
-- take a subquery in the condition of an upsert; the single writer makes them one.
delete from tenure.dedupe
where queue = $2
  and key = $3
  and until <= {now}
  and not exists (select 1 from tenure.message m where m.id = tenure.dedupe.id)
  and not exists (select 1 from tenure.message m where m.origin_id = tenure.dedupe.id)
  and not exists (select 1 from tenure.scheduled s where s.id = tenure.dedupe.id)
  and not exists (select 1 from tenure.scheduled s where s.origin_id = tenure.dedupe.id);
insert into tenure.dedupe (queue, key, id, until)
select q.id, $3, 0, {now} + q.dedupe_us
from tenure.queue q
where q.id = $2
on conflict (queue, key) do nothing
returning queue, key
