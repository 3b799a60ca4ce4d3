-- The message that has a key, and when it took it, unless the queue's window has changed since.
select i.n, d.id, d.until - q.dedupe_us as taken_at
from unnest($1::bigint[], $2::text[], $3::bigint[]) as i (queue, key, n)
join tenure.dedupe d on d.queue = i.queue and d.key = i.key
join tenure.queue q on q.id = i.queue
