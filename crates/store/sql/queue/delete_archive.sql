delete from tenure.archive where queue = $1
