select id, status, output, started_at, completed_at, events
from tenure.execution
where instance = $1
  and id = $2
