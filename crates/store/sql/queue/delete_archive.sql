delete from tenure.archive where queue = $1 and queue > 0
