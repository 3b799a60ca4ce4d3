select id, partition
from tenure.lane
where queue = $1
order by partition
