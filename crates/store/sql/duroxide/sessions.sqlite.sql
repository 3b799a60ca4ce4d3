select session_id, worker_id, locked_until * 1000 as leased_until, last_activity_at * 1000 as active_at
from sessions
