-- Lanes in which something is due.
select l.id
from tenure.lane l
where exists (select 1 from tenure.scheduled s where s.lane = l.id and s.lane > 0 and s.due_at <= {now})
order by l.id
limit $2
