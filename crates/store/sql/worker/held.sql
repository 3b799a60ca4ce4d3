select count(*) as held from tenure.message where worker = $2 and leased_until > {now}
