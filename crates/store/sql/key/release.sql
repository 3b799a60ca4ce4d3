delete from tenure.key_lease where token = $1 returning lane, key
