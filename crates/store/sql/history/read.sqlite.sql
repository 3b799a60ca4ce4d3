-- As for PostgreSQL, where a CTE is computed once only when told to.
select 0 as part, i.born as id, coalesce($2, i.execution) as n, null as a
from tenure.instance i
where i.id = $1
union all
select 2, h.id, null, h.data
from tenure.instance i
join tenure.history h on h.instance = i.id and h.execution = coalesce($2, i.execution)
where i.id = $1
  and h.id > case when i.born = $3 and coalesce($2, i.execution) = $4 then $5 else 0 end
