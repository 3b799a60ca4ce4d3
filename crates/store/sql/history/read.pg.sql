-- The latest execution, or the one that is asked for; only what comes after what the caller knows, if that is still the
-- same instance and execution. Part 0 says which they are, and comes with an instance that has nothing new too.
with wanted as materialized (
    select i.id, i.born, coalesce($2::bigint, i.execution) as execution
    from tenure.instance i
    where i.id = $1
)
select 0 as part, w.born as id, w.execution as n, null as a
from wanted w
union all
select 2, h.id, null, h.data
from wanted w
join tenure.history h on h.instance = w.id and h.execution = w.execution
where h.id > case when w.born = $3 and w.execution = $4 then $5::bigint else 0 end
