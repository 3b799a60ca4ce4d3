delete from tenure.role where id = $1
