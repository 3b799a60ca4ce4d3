-- In one order, so that two deletions cannot wait for each other; whoever holds a turn has to end it first.
select i.id, (i.name is not null) as named, coalesce(e.status = 'Running', false) as running
from tenure.instance i
left join tenure.execution e on e.instance = i.id and e.id = i.execution
where i.id = any ($1::text[])
order by i.id
for update of i
