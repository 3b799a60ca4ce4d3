-- All executions of the instances, in no order.
select instance, execution, id, data
from tenure.history
where instance = any ($1::text[])
