select queue from tenure.lane where id = $1
