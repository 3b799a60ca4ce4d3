delete from tenure.message as m
where lane = $2
  and lane > 0
  and (($3 and {until} <= {now}) or ($4 and {until} > {now}))
