select id, lane
from tenure.scheduled
where lane = $2
  and lane > 0
  and due_at <= {now}
order by due_at, id
limit $3
for update skip locked
