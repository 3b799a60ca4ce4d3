-- Once for every event.
insert into tenure.history (instance, execution, id, data)
values ($1, $2, $3, $4)
on conflict (instance, execution, id) do nothing
