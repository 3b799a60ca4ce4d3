select i.id, i.name, i.version, i.execution, coalesce(e.status, 'Running') as status, e.output, i.created_at, i.updated_at, i.parent
from tenure.instance i
left join tenure.execution e on e.instance = i.id and e.id = i.execution
where i.id = $1
  and i.name is not null
