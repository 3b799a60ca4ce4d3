delete from tenure.message where lane = $1
