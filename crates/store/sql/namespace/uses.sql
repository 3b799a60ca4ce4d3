-- Whether it is there, and what still belongs to it.
select
    exists (select 1 from tenure.namespace where name = $1) as there,
    exists (select 1 from tenure.role_binding where namespace = $1) as bindings,
    exists (select 1 from tenure.role where namespace = $1) as roles,
    exists (select 1 from tenure.queue where namespace = $1) as queues
