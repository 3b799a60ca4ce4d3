update tenure.dedupe set id = $3 where queue = $1 and key = $2
