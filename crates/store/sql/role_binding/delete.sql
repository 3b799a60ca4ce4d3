delete from tenure.role_binding
where namespace = $1
  and user_id = $2
  and role_id = $3
