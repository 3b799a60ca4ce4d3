select key, case when drafted then draft else value end as value
from tenure.kv
where instance = $1
