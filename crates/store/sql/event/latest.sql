select max(execution) as execution from tenure.event where stream = $1
