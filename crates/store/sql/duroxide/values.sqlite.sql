-- What finished executions left is in one table, what the running one wrote (null: removed) in the other.
select k.instance_id, k.key, k.value, k.last_updated_at_ms, d.key is not null as drafted, d.value as draft,
       coalesce(d.last_updated_at_ms, 0) as draft_at
from kv_store k
left join kv_delta d on d.instance_id = k.instance_id and d.key = k.key
where k.instance_id = ?1
union all
select d.instance_id, d.key, null, 0, 1, d.value, d.last_updated_at_ms
from kv_delta d
where d.instance_id = ?1
  and not exists (select 1 from kv_store k where k.instance_id = d.instance_id and k.key = d.key)
