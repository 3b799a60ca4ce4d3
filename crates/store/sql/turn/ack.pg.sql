-- One complete act for as many turns as end together; all or nothing, and nothing for a turn whose lease is not held: every
-- part hangs on `held`. An event that is already there is an error that undoes everything. Whoever repeats an
-- acknowledgement after an unknown outcome finds its own token in `acked`. A part between {with $n} and {end} is left out
-- where there is nothing for it: starting a plan costs as much as running it.
with clock as materialized (select {now} as now),
     acks as materialized (
         select a.instance, a.token, a.execution, a.name, a.version, a.parent, a.status, a.output, a.pinned, a.custom,
                a.custom_status, a.clear, a.terminal, a.events
         from unnest($3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
                     $11::bigint[], $12::boolean[], $13::text[], $14::boolean[], $15::boolean[], $16::bigint[])
             as a (instance, token, execution, name, version, parent, status, output, pinned, custom, custom_status, clear,
                   terminal, events)
     ),
     held as (
         update tenure.instance i
         set name           = coalesce(a.name, i.name),
             version        = coalesce(a.version, i.version),
             parent         = case when i.name is null then a.parent else i.parent end,
             created_at     = case when i.name is null then c.now else i.created_at end,
             pinned         = case when a.execution > i.execution then a.pinned
                                   when a.execution = i.execution then coalesce(a.pinned, i.pinned)
                                   else i.pinned end,
             execution      = greatest(i.execution, a.execution),
             custom_status  = case when a.custom then a.custom_status else i.custom_status end,
             custom_version = i.custom_version + a.custom::int,
             turns          = i.turns + 1,
             token          = 0,
             leased_until   = 0,
             acked          = a.token,
             updated_at     = c.now
         from acks a
         cross join clock c
         where i.id = a.instance
           and i.token = a.token
           and i.leased_until > c.now
         returning i.id, i.born, i.turns, c.now, a.token, a.execution, a.status, a.output, a.pinned, a.clear, a.terminal, a.events
     ),
     execution as (
         insert into tenure.execution as e (instance, id, status, output, pinned, events, started_at, completed_at)
         select h.id, h.execution, coalesce(h.status, 'Running'), h.output, h.pinned, h.events, h.now,
                case when h.status <> 'Running' then h.now end
         from held h
         on conflict (instance, id) do update
         set status       = case when excluded.completed_at is null then e.status else excluded.status end,
             output       = case when excluded.completed_at is null then e.output else excluded.output end,
             pinned       = coalesce(excluded.pinned, e.pinned),
             events       = e.events + excluded.events,
             completed_at = coalesce(excluded.completed_at, e.completed_at)
     ),
{with $17}
     recorded as (
         insert into tenure.history (instance, execution, id, data)
         select h.id, i.execution, i.id, i.data
         from unnest($17::text[], $18::bigint[], $19::bigint[], $20::text[]) as i (instance, execution, id, data)
         join held h on h.id = i.instance
     ),
{end}
{with $21}
     scheduled as (
         insert into tenure.work (due_at, leased_until, token, attempts, instance, execution, activity, session, tag, item)
         select 0, 0, 0, 0, i.instance, i.execution, i.activity, i.session, i.tag, i.item
         from unnest($21::text[], $22::text[], $23::bigint[], $24::bigint[], $25::text[], $26::text[], $27::text[])
             with ordinality as i (turn, instance, execution, activity, session, tag, item, n)
         join held h on h.id = i.turn
         order by i.n
     ),
{end}
{with $28}
     cancelled as (
         delete from tenure.work w
         using unnest($28::text[], $29::text[], $30::bigint[], $31::bigint[]) as i (turn, instance, execution, activity)
         join held h on h.id = i.turn
         where w.instance = i.instance
           and w.execution = i.execution
           and w.activity = i.activity
     ),
{end}
{with $32}
     messages as materialized (
         select i.instance, i.visible_at, i.item, i.n, h.now
         from unnest($32::text[], $33::text[], $34::bigint[], $35::text[]) with ordinality as i (turn, instance, visible_at, item, n)
         join held h on h.id = i.turn
     ),
     shell as (
         insert into tenure.instance (id, born, execution, custom_version, turns, token, leased_until, acked, created_at, updated_at)
         select distinct m.instance, (random() * 4611686018427387904)::bigint, 1, 0, 0, 0, 0, 0, m.now, m.now
         from messages m
         where not exists (select 1 from tenure.instance x where x.id = m.instance)
         on conflict (id) do nothing
     ),
     sent as (
         insert into tenure.inbox (instance, visible_at, attempts, token, item)
         select m.instance, coalesce(m.visible_at, m.now), 0, 0, m.item
         from messages m
         order by m.n
     ),
{end}
{with $2}
     -- What becomes of each value that these turns touch: what they set or removed; after `clear` every other one is removed;
     -- at the end of an execution every draft is folded in.
     touched as materialized (
         select h.id as instance, h.terminal, i.key, i.value, i.at
         from unnest($36::text[], $37::text[], $38::text[], $39::bigint[]) as i (instance, key, value, at)
         join held h on h.id = i.instance
         union all
         select h.id, h.terminal, k.key, case when h.clear then null else k.draft end,
                case when h.clear then h.now / 1000 else k.draft_at end
         from held h
         join tenure.kv k on k.instance = h.id
         where (h.clear or (h.terminal and k.drafted))
           and not exists (select 1 from unnest($36::text[], $37::text[]) as i (instance, key) where i.instance = h.id and i.key = k.key)
     ),
     removed as (
         delete from tenure.kv k
         using touched t
         where t.terminal
           and t.value is null
           and k.instance = t.instance
           and k.key = t.key
     ),
     kept as (
         insert into tenure.kv as k (instance, key, value, updated_at, drafted, draft, draft_at)
         select t.instance, t.key, case when t.terminal then t.value end, case when t.terminal then t.at else 0 end,
                not t.terminal, case when t.terminal then null else t.value end, case when t.terminal then 0 else t.at end
         from touched t
         where not t.terminal or t.value is not null
         on conflict (instance, key) do update
         set value      = case when excluded.drafted then k.value else excluded.value end,
             updated_at = case when excluded.drafted then k.updated_at else excluded.updated_at end,
             drafted    = excluded.drafted,
             draft      = excluded.draft,
             draft_at   = excluded.draft_at
     ),
{end}
     consumed as (
         delete from tenure.inbox m
         using held h
         where m.instance = h.id
           -- What was visible an hour ahead of a clock that was set back; not every timer of the instance.
           and m.visible_at <= h.now + 3600000000
           and m.token = h.token
     )
select a.instance, h.born, h.turns,
       exists (select 1 from tenure.instance i where i.id = a.instance and i.acked = a.token) as already,
       exists (select 1 from tenure.inbox m where m.instance = a.instance and m.token <> a.token and m.visible_at <= c.now) as more
from acks a
cross join clock c
left join held h on h.id = a.instance
