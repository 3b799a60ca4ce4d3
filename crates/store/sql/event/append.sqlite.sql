insert into tenure.event (stream, execution, id, created_at, data)
select $2, $3, $4, {now}, $5
where $6 is not null
returning id
