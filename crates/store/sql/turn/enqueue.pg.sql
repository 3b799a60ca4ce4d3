-- An instance has its row from its first message on, so that a fetch has something to lock. A message whose enqueue is
-- repeated after an unknown outcome is known by its nonce.
with clock as materialized (select {now} as now),
     wanted as materialized (
         select i.instance, i.delay_us, i.nonce, i.item, i.n
         from unnest($2::text[], $3::bigint[], $4::bigint[], $5::text[]) with ordinality as i (instance, delay_us, nonce, item, n)
     ),
     shell as (
         insert into tenure.instance (id, born, execution, custom_version, turns, token, leased_until, acked, created_at, updated_at)
         select distinct w.instance, (random() * 4611686018427387904)::bigint, 1, 0, 0, 0, 0, 0, c.now, c.now
         from clock c
         cross join wanted w
         where not exists (select 1 from tenure.instance i where i.id = w.instance)
         on conflict (id) do nothing
     )
insert into tenure.inbox (instance, visible_at, attempts, token, nonce, item)
select w.instance, c.now + coalesce(w.delay_us, 0), 0, 0, w.nonce, w.item
from clock c
cross join wanted w
where not exists (select 1 from tenure.inbox m where m.nonce = w.nonce)
order by w.n
