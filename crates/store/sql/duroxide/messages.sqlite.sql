-- A timer may be further away than microseconds can count.
select instance_id,
       case typeof(visible_at)
           when 'integer' then min(visible_at, 9223372036854775) * 1000
           when 'text' then cast(strftime('%s', visible_at) as integer) * 1000000
           else 0 end as visible_at,
       attempt_count, work_item
from orchestrator_queue
where instance_id = ?1
order by id
