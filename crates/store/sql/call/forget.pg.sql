-- Calls of processes that ended: no call is repeated for longer than a few minutes.
delete from tenure.call where token > $2 and token <= $3 and called_at < {now} - 3600000000
