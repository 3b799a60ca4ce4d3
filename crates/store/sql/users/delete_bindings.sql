delete from tenure.role_binding where user_id = $1
