delete from tenure.scheduled where lane = $1
