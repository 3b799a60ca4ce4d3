select id
from tenure.execution
where instance = $1
order by id
