-- Messages that nobody will ever wait for: they go, and the instance is free again.
with freed as (
         update tenure.instance
         set token = 0, leased_until = 0
         where id = $1 and token = $2
         returning id
     )
delete from tenure.inbox m
using freed f
where m.instance = f.id
  and m.token = $2
