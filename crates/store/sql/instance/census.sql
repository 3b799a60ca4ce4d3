-- Events are summed up from the executions: counting them one by one would slow every start of a runtime on a big store.
select (select count(*) from tenure.instance i where i.name is not null) as instances,
       (select count(*) from tenure.execution) as executions,
       (select cast(coalesce(sum(e.events), 0) as bigint) from tenure.execution e) as events,
       (select count(*) from tenure.instance i join tenure.execution e on e.instance = i.id and e.id = i.execution
        where i.name is not null and e.status = 'Running') as running,
       (select count(*) from tenure.instance i join tenure.execution e on e.instance = i.id and e.id = i.execution
        where i.name is not null and e.status = 'Completed') as completed,
       (select count(*) from tenure.instance i join tenure.execution e on e.instance = i.id and e.id = i.execution
        where i.name is not null and e.status = 'Failed') as failed
