insert into tenure.lane (queue, partition)
select $1, i.partition
from unnest($2::bigint[], $3::bigint[]) as i (partition, n)
order by i.n
returning id
