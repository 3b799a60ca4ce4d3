delete from tenure.api_key where user_id = $1
