delete from tenure.users where id = $1
