select instance_id, execution_id, event_id, event_data
from history
where instance_id = ?1
order by execution_id, event_id
