select expire_us from tenure.lane where id = $1
