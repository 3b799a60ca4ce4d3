-- Completes activities whose leases are still held: each row goes, its completion enters the instance's inbox, and its
-- session has been active. Merged calls share a transaction; the ordinal tells which were done.
with clock as materialized (select {now} as now),
     gone as (
         delete from tenure.work w
         using clock c, unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::bigint[]) as i (id, token, instance, item, n)
         where w.due_at = 0
           and w.id = i.id
           and w.token = i.token
           and w.leased_until > c.now
         returning i.n, i.instance, i.item, w.session, c.now
     ),
     active as (
         update tenure.session s
         set active_at = g.now
         from gone g
         where s.id = g.session
           and s.leased_until > g.now
     ),
     shell as (
         insert into tenure.instance (id, born, execution, custom_version, turns, token, leased_until, acked, created_at, updated_at)
         select distinct g.instance, (random() * 4611686018427387904)::bigint, 1, 0, 0, 0, 0, 0, g.now, g.now
         from gone g
         where g.item is not null
           and not exists (select 1 from tenure.instance x where x.id = g.instance)
         on conflict (id) do nothing
     ),
     sent as (
         insert into tenure.inbox (instance, visible_at, attempts, token, item)
         select g.instance, g.now, 0, 0, g.item
         from gone g
         where g.item is not null
         order by g.n
     )
select g.n from gone g
