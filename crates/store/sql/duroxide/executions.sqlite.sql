-- Events that were appended without a turn may have no row for their execution: it runs.
select e.instance_id, e.execution_id, e.status, e.output,
       e.duroxide_version_major * 1000000 + coalesce(e.duroxide_version_minor, 0) * 1000
       + coalesce(e.duroxide_version_patch, 0) as pinned,
       (select count(*) from history h where h.instance_id = e.instance_id and h.execution_id = e.execution_id) as events,
       case typeof(e.started_at)
           when 'integer' then e.started_at * 1000
           when 'text' then cast(strftime('%s', e.started_at) as integer) * 1000000
           else 0 end as started_at,
       case typeof(e.completed_at)
           when 'integer' then e.completed_at * 1000
           when 'text' then cast(strftime('%s', e.completed_at) as integer) * 1000000
           end as completed_at
from executions e
where e.instance_id = ?1
union all
select h.instance_id, h.execution_id, 'Running', null, null, count(*),
       min(case typeof(h.created_at)
               when 'integer' then h.created_at * 1000
               when 'text' then cast(strftime('%s', h.created_at) as integer) * 1000000
               else 0 end),
       null
from history h
where h.instance_id = ?1
  and not exists (select 1 from executions e where e.instance_id = h.instance_id and e.execution_id = h.execution_id)
group by h.instance_id, h.execution_id
