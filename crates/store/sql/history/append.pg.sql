-- For tests and repairs: a turn writes its own history. An event that is already there is an error.
with clock as materialized (select {now} as now),
     held as (
         insert into tenure.instance as i (id, born, execution, custom_version, turns, token, leased_until, acked, created_at, updated_at)
         select $2, (random() * 4611686018427387904)::bigint, $3, 0, 1, 0, 0, 0, c.now, c.now
         from clock c
         on conflict (id) do update
         set execution = greatest(i.execution, excluded.execution), turns = i.turns + 1, updated_at = excluded.updated_at
         returning i.id
     ),
     execution as (
         insert into tenure.execution as e (instance, id, status, events, started_at)
         select h.id, $3, 'Running', $4, c.now
         from held h
         cross join clock c
         on conflict (instance, id) do update
         set events = e.events + excluded.events
     )
insert into tenure.history (instance, execution, id, data)
select h.id, $3, i.id, i.data
from held h
cross join unnest($5::bigint[], $6::text[]) as i (id, data)
