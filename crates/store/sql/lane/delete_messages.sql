delete from tenure.message where lane = $1 and lane > 0
