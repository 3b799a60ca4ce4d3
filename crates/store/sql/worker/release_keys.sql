delete from tenure.key_lease where worker = $1
