-- The single writer is the lock.
select i.id, i.name is not null as named, coalesce(e.status = 'Running', 0) as running
from tenure.instance i
left join tenure.execution e on e.instance = i.id and e.id = i.execution
where i.id = $1
