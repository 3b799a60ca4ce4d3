-- All leases of one worker at once; attempts stay counted. No index leads from worker to message, because it would
-- make every lease rewrite an index: this walks the table, and is for workers that died.
update tenure.message
set leased_until = 0, worker = null
where worker = $1 and leased_until > 0
returning id, lane
