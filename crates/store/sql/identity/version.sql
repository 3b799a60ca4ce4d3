select version from tenure.identity where id = 1
