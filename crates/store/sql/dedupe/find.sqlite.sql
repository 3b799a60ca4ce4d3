-- One row at a time.
select $3 as n, d.id, d.until - q.dedupe_us as taken_at
from tenure.dedupe d
join tenure.queue q on q.id = d.queue
where d.queue = $1 and d.key = $2
