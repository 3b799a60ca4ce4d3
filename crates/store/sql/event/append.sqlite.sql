insert into tenure.event (stream, execution, id, created_at, data)
values ($2, $3, $4, {now}, $5)
