-- Finished instances that no other one started, oldest first.
select i.id
from tenure.instance i
join tenure.execution e on e.instance = i.id and e.id = i.execution
where i.parent is null
  and i.name is not null
  and e.status in ('Completed', 'Failed', 'ContinuedAsNew')
  and (cast($1 as bigint) is null or e.completed_at < $1)
order by e.completed_at, i.id
limit $2
