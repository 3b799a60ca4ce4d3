delete from tenure.scheduled where lane = $1 and lane > 0
