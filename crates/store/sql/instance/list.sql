-- Newest first; with a status, those whose current execution has it.
select i.id
from tenure.instance i
left join tenure.execution e on e.instance = i.id and e.id = i.execution
where i.name is not null
  and (cast($1 as text) is null or e.status = $1)
order by i.created_at desc, i.id
