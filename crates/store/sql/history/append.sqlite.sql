-- No writable CTEs: several steps.
insert into tenure.instance as i (id, born, execution, custom_version, turns, token, leased_until, acked, created_at, updated_at)
values ($2, abs(random() / 2), $3, 0, 1, 0, 0, 0, {now}, {now})
on conflict (id) do update
set execution = max(i.execution, excluded.execution), turns = i.turns + 1, updated_at = excluded.updated_at;
insert into tenure.execution as e (instance, id, status, events, started_at)
values ($2, $3, 'Running', $4, {now})
on conflict (instance, id) do update
set events = e.events + excluded.events;
{each $5}
insert into tenure.history (instance, execution, id, data)
values ($2, $3, $5, $6)
