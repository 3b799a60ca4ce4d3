update tenure.role
set permissions = $3
where namespace = $1
  and name = $2
