-- Once for every instance.
select instance, execution, id, data
from tenure.history
where instance = $1
