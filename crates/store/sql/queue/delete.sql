delete from tenure.queue where id = $1
