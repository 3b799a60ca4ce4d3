delete from tenure.namespace where name = $1
