select count(*) as held from tenure.message m where worker = $2 and {until} > {now}
