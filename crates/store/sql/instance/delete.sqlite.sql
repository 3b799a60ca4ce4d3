-- Once for every instance: what will go is counted first.
select (select count(*) from tenure.instance where id = $1 and name is not null) as instances,
       (select count(*) from tenure.execution where instance = $1) as executions,
       (select count(*) from tenure.history where instance = $1) as events,
       (select count(*) from tenure.inbox where instance = $1) + (select count(*) from tenure.work where instance = $1) as messages;
delete from tenure.execution where instance = $1;
delete from tenure.history where instance = $1;
delete from tenure.inbox where instance = $1;
delete from tenure.work where instance = $1;
delete from tenure.kv where instance = $1;
delete from tenure.instance where id = $1
