-- No lateral joins; a text has its bytes counted as a blob.
select e.events,
       (select coalesce(sum(length(cast(h.data as blob))), 0) from tenure.history h where h.instance = i.id and h.execution = i.execution) as bytes,
       (select h.data from tenure.history h where h.instance = i.id and h.execution = i.execution and h.id = 1) as first,
       (select count(*) from tenure.kv k
        where k.instance = i.id and case when k.drafted then k.draft else k.value end is not null) as keys,
       (select coalesce(sum(length(cast(case when k.drafted then k.draft else k.value end as blob))), 0)
        from tenure.kv k where k.instance = i.id) as value_bytes
from tenure.instance i
left join tenure.execution e on e.instance = i.id and e.id = i.execution
where i.id = $1
  and i.name is not null
