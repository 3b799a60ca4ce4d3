-- Everything that belongs to the instances. Their rows are locked, so no turn can bring them back.
with instances as (delete from tenure.instance where id = any ($1::text[]) returning (name is not null)::int as named),
     executions as (delete from tenure.execution where instance = any ($1::text[]) returning id),
     events as (delete from tenure.history where instance = any ($1::text[]) returning id),
     messages as (delete from tenure.inbox where instance = any ($1::text[]) returning id),
     work as (delete from tenure.work where instance = any ($1::text[]) returning id),
     kv as (delete from tenure.kv where instance = any ($1::text[]))
select (select coalesce(sum(named), 0)::bigint from instances) as instances,
       (select count(*) from executions) as executions,
       (select count(*) from events) as events,
       (select count(*) from messages) + (select count(*) from work) as messages
