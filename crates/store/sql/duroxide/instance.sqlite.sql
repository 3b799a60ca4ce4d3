-- ?1 is the instance and ?2 what marks it as copied. One without a row has no name yet; a version may be missing, which
-- duroxide reads as 'unknown'. Times are texts where SQLite's default wrote them, else milliseconds.
select x.id, x.born, i.orchestration_name,
       case when i.orchestration_name is not null then coalesce(i.orchestration_version, 'unknown') end as version,
       i.parent_instance_id, x.execution,
       (select e.duroxide_version_major * 1000000 + coalesce(e.duroxide_version_minor, 0) * 1000
               + coalesce(e.duroxide_version_patch, 0)
        from executions e
        where e.instance_id = x.id and e.execution_id = x.execution) as pinned,
       i.custom_status, coalesce(i.custom_status_version, 0) as custom_version,
       case typeof(i.created_at)
           when 'integer' then i.created_at * 1000
           when 'text' then cast(strftime('%s', i.created_at) as integer) * 1000000
           else 0 end as created_at,
       case typeof(i.updated_at)
           when 'integer' then i.updated_at * 1000
           when 'text' then cast(strftime('%s', i.updated_at) as integer) * 1000000
           else 0 end as updated_at
from (
    select ?1 as id, ?2 as born,
           coalesce((select n.current_execution_id from instances n where n.instance_id = ?1),
                    (select max(e.execution_id) from executions e where e.instance_id = ?1),
                    (select max(h.execution_id) from history h where h.instance_id = ?1),
                    1) as execution
) x
left join instances i on i.instance_id = x.id
