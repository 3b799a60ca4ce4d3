delete from tenure.dedupe where queue = $1
