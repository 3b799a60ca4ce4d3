delete from tenure.archive where queue = $1 and id = $2
