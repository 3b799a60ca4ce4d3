-- Never the current execution and never one that runs.
with gone as (
         delete from tenure.execution e
         using tenure.instance i
         where i.id = $1
           and e.instance = i.id
           and e.id <> i.execution
           and e.status <> 'Running'
           and ($2::bigint is null or e.completed_at < $2)
           and ($3::bigint is null or e.id not in (
               select k.id from tenure.execution k where k.instance = $1 order by k.id desc limit $3))
         returning e.id
     ),
     events as (
         delete from tenure.history h
         using gone g
         where h.instance = $1
           and h.execution = g.id
         returning h.id
     )
select (select count(*) from gone) as executions, (select count(*) from events) as events
