-- The instance has its row before its completion comes. An activity whose enqueue is repeated after an unknown outcome is
-- known by its nonce.
with shell as (
         insert into tenure.instance (id, born, execution, custom_version, turns, token, leased_until, acked, created_at, updated_at)
         select $3, (random() * 4611686018427387904)::bigint, 1, 0, 0, 0, 0, 0, c.now, c.now
         from (select {now} as now) c
         where $3::text is not null
         on conflict (id) do nothing
     )
insert into tenure.work (due_at, leased_until, token, attempts, nonce, instance, execution, activity, session, tag, item)
select 0, 0, 0, 0, $2, $3, $4, $5, $6, $7, $8
where not exists (select 1 from tenure.work w where w.instance = $3 and w.nonce = $2)
