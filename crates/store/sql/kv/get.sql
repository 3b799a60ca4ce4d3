select case when drafted then draft else value end as value
from tenure.kv
where instance = $1
  and key = $2
