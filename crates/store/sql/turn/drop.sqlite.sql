-- No writable CTEs: the messages first, then the lease that they hang on.
delete from tenure.inbox
where instance = $1
  and token = $2
  and exists (select 1 from tenure.instance i where i.id = $1 and i.token = $2);
update tenure.instance
set token = 0, leased_until = 0
where id = $1 and token = $2
