-- One complete act, all or nothing, and nothing unless the lease is still held: every part hangs on `held`. An event that
-- is already there is an error that undoes everything. Whoever repeats an acknowledgement after an unknown outcome finds
-- its own token in `acked`.
with clock as materialized (select {now} as now),
     held as (
         update tenure.instance i
         set name           = coalesce($5, i.name),
             version        = coalesce($6, i.version),
             parent         = case when i.name is null then $7 else i.parent end,
             created_at     = case when i.name is null then c.now else i.created_at end,
             pinned         = case when $4 > i.execution then $10 when $4 = i.execution then coalesce($10, i.pinned) else i.pinned end,
             execution      = greatest(i.execution, $4),
             custom_status  = case when $11 then $12 else i.custom_status end,
             custom_version = i.custom_version + $11::int,
             turns          = i.turns + 1,
             token          = 0,
             leased_until   = 0,
             acked          = $3,
             updated_at     = c.now
         from clock c
         where i.id = $2
           and i.token = $3
           and i.leased_until > c.now
         returning i.id, i.born, c.now
     ),
     execution as (
         insert into tenure.execution as e (instance, id, status, output, pinned, events, started_at, completed_at)
         select h.id, $4, coalesce($8, 'Running'), $9, $10, $15, h.now, case when $8 <> 'Running' then h.now end
         from held h
         on conflict (instance, id) do update
         set status       = coalesce($8, e.status),
             output       = case when $8 is null then e.output else excluded.output end,
             pinned       = coalesce($10, e.pinned),
             events       = e.events + excluded.events,
             completed_at = case when $8 is null then e.completed_at else excluded.completed_at end
     ),
     recorded as (
         insert into tenure.history (instance, execution, id, data)
         select h.id, $4, i.id, i.data
         from held h
         cross join unnest($16::bigint[], $17::text[]) as i (id, data)
     ),
     scheduled as (
         insert into tenure.work (due_at, leased_until, token, attempts, instance, execution, activity, session, tag, item)
         select 0, 0, 0, 0, i.instance, i.execution, i.activity, i.session, i.tag, i.item
         from held h
         cross join unnest($18::text[], $19::bigint[], $20::bigint[], $21::text[], $22::text[], $23::text[])
             with ordinality as i (instance, execution, activity, session, tag, item, n)
         order by i.n
     ),
     cancelled as (
         delete from tenure.work w
         using held h
         cross join unnest($24::text[], $25::bigint[], $26::bigint[]) as i (instance, execution, activity)
         where w.instance = i.instance
           and w.execution = i.execution
           and w.activity = i.activity
     ),
     consumed as (
         delete from tenure.inbox m
         using held h
         where m.instance = h.id
           and m.token = $3
     ),
     shell as (
         insert into tenure.instance (id, born, execution, custom_version, turns, token, leased_until, acked, created_at, updated_at)
         select distinct i.instance, (random() * 4611686018427387904)::bigint, 1, 0, 0, 0, 0, 0, h.now, h.now
         from held h
         cross join unnest($27::text[]) as i (instance)
         where not exists (select 1 from tenure.instance x where x.id = i.instance)
         on conflict (id) do nothing
     ),
     sent as (
         insert into tenure.inbox (instance, visible_at, attempts, token, item)
         select i.instance, coalesce(i.visible_at, h.now), 0, 0, i.item
         from held h
         cross join unnest($27::text[], $28::bigint[], $29::text[]) with ordinality as i (instance, visible_at, item, n)
         order by i.n
     ),
     -- What becomes of each value that this turn touches: what it set or removed; after `clear all` every other one is
     -- removed; at the end of an execution every draft is folded in.
     touched as materialized (
         select i.key, i.value, i.at
         from held h
         cross join unnest($30::text[], $31::text[], $32::bigint[]) as i (key, value, at)
         union all
         select k.key, case when $13 then null else k.draft end, case when $13 then h.now / 1000 else k.draft_at end
         from held h
         join tenure.kv k on k.instance = h.id
         where ($13 or $14)
           and ($13 or k.drafted)
           and not exists (select 1 from unnest($30::text[]) as i (key) where i.key = k.key)
     ),
     removed as (
         delete from tenure.kv k
         using touched t
         where $14
           and t.value is null
           and k.instance = $2
           and k.key = t.key
     ),
     kept as (
         insert into tenure.kv as k (instance, key, value, updated_at, drafted, draft, draft_at)
         select $2, t.key, case when $14 then t.value end, case when $14 then t.at else 0 end, not $14,
                case when $14 then null else t.value end, case when $14 then 0 else t.at end
         from touched t
         where not $14 or t.value is not null
         on conflict (instance, key) do update
         set value      = case when $14 then excluded.value else k.value end,
             updated_at = case when $14 then excluded.updated_at else k.updated_at end,
             drafted    = excluded.drafted,
             draft      = excluded.draft,
             draft_at   = excluded.draft_at
     )
select (select h.born from held h) as born,
       exists (select 1 from tenure.instance i where i.id = $2 and i.acked = $3) as already,
       exists (select 1 from tenure.inbox m, clock c where m.instance = $2 and m.token <> $3 and m.visible_at <= c.now) as more
