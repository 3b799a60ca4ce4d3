insert into tenure.lane (queue, partition)
values ($1, $2)
returning id
