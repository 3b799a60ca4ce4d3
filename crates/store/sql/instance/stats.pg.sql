select e.events,
       (select coalesce(sum(octet_length(h.data)), 0)::bigint from tenure.history h where h.instance = i.id and h.execution = i.execution) as bytes,
       (select h.data from tenure.history h where h.instance = i.id and h.execution = i.execution and h.id = 1) as first,
       v.keys,
       v.value_bytes
from tenure.instance i
left join tenure.execution e on e.instance = i.id and e.id = i.execution
cross join lateral (
    select count(*) as keys, coalesce(sum(octet_length(case when k.drafted then k.draft else k.value end)), 0)::bigint as value_bytes
    from tenure.kv k
    where k.instance = i.id
      and case when k.drafted then k.draft else k.value end is not null
) v
where i.id = $1
  and i.name is not null
