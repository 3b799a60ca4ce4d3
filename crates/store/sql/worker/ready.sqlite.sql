select id
from tenure.worker
where id = $1
  and status = 'ready'
