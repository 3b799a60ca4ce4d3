-- Once for every question.
select $7 as n, 0 as part, i.born as id, coalesce($2, i.execution) as execution, i.custom_version,
       i.name is not null and i.custom_version > $6 as newer,
       case when i.name is not null and i.custom_version > $6 then i.custom_status end as data
from tenure.instance i
where i.id = $1
union all
select $7, 2, h.id, null, null, null, h.data
from tenure.instance i
join tenure.history h on h.instance = i.id and h.execution = coalesce($2, i.execution)
where i.id = $1
  and h.id > case when $3 is null then $5 when i.born = $3 and coalesce($2, i.execution) = $4 then $5 else 0 end
