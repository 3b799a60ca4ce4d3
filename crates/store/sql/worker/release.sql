-- All leases of one worker at once; attempts stay counted. Messages leased with their key follow it: see `release_keys`. No index leads from worker to message, because it would
-- make every lease rewrite an index: this walks the table, and is for workers that died.
update tenure.message
set leased_until = 0, worker = null
where worker = $1 and leased_until > 0 and token is null
returning id, lane
