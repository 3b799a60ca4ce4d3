-- Instances whose old executions may go; running ones too, which may have many behind them.
select i.id
from tenure.instance i
left join tenure.execution e on e.instance = i.id and e.id = i.execution
where i.name is not null
  and (cast($1 as bigint) is null or e.completed_at < $1)
order by i.created_at, i.id
limit $2
