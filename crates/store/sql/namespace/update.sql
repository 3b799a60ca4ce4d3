update tenure.namespace
set description = $2, key_tag = $3
where name = $1
