delete from tenure.lane where queue = $1
