delete from tenure.key_lease where lane = $1
