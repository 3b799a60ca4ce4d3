delete from tenure.api_key where id = $1
