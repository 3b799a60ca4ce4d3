select
    id, queue, lane, outcome, reason, worker, leased_at, attempts, max_attempts, created_at, finished_at, expire_at,
    key, kind, encoding, reference, producer, payload
from tenure.archive
where id = $1
