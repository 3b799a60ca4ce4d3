select $3 as n, id from tenure.dedupe where queue = $1 and key = $2
