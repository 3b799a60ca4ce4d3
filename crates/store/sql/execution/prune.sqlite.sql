-- Several steps on one condition: counted, then the events, then the executions.
with gone as (
    select e.id, e.events
    from tenure.execution e
    join tenure.instance i on i.id = e.instance
    where i.id = $1
      and e.id <> i.execution
      and e.status <> 'Running'
      and ($2 is null or e.completed_at < $2)
      and ($3 is null or e.id not in (
          select k.id from tenure.execution k where k.instance = $1 order by k.id desc limit $3))
)
select count(*) as executions,
       (select count(*) from tenure.history h where h.instance = $1 and h.execution in (select g.id from gone g)) as events
from gone;
delete from tenure.history
where instance = $1
  and execution in (
      select e.id
      from tenure.execution e
      join tenure.instance i on i.id = e.instance
      where i.id = $1
        and e.id <> i.execution
        and e.status <> 'Running'
        and ($2 is null or e.completed_at < $2)
        and ($3 is null or e.id not in (
            select k.id from tenure.execution k where k.instance = $1 order by k.id desc limit $3))
  );
delete from tenure.execution
where instance = $1
  and id <> (select i.execution from tenure.instance i where i.id = $1)
  and status <> 'Running'
  and ($2 is null or completed_at < $2)
  and ($3 is null or id not in (
      select k.id from tenure.execution k where k.instance = $1 order by k.id desc limit $3))
