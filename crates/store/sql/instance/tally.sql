-- Every row, whatever it says: for the comparison with what was copied.
select (select count(*) from tenure.instance) as instances,
       (select count(*) from tenure.execution) as executions,
       (select count(*) from tenure.history) as events,
       (select count(*) from tenure.inbox) as messages,
       (select count(*) from tenure.work) as activities,
       (select count(*) from tenure.kv) as kept,
       (select count(*) from tenure.session) as sessions
