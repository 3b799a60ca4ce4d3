-- A key is taken while its window lasts, and beyond it while its message still lives.
insert into tenure.dedupe as d (queue, key, id, until)
select i.queue, i.key, 0, {now} + q.dedupe_us
from unnest($2::bigint[], $3::text[]) as i (queue, key)
join tenure.queue q on q.id = i.queue
order by i.queue, i.key
on conflict (queue, key) do update
set id = 0, until = excluded.until
where d.until <= {now}
  and not exists (select 1 from tenure.message m where m.id = d.id)
  and not exists (select 1 from tenure.message m where m.origin_id = d.id)
  and not exists (select 1 from tenure.scheduled s where s.id = d.id)
  and not exists (select 1 from tenure.scheduled s where s.origin_id = d.id)
returning queue, key
