insert into tenure.lane (queue, partition)
select $1, $2
where $3 is not null
returning id
