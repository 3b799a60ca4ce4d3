select name from tenure.queue where id = $1
