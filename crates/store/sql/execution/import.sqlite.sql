-- Once for every execution.
insert into tenure.execution (instance, id, status, output, pinned, events, started_at, completed_at)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (instance, id) do nothing
