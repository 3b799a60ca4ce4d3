select
    id, queue, lane, outcome, reason, worker, attempts, max_attempts, created_at, finished_at, expire_at,
    key, kind, encoding, reference, payload
from tenure.archive
where id = $1
