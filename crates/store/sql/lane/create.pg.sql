insert into tenure.lane (queue, partition)
select $1, partition
from unnest($2::bigint[]) as partition
returning id
