delete from tenure.message
where lane = $2
  and lane > 0
  and (($3 and leased_until <= {now}) or ($4 and leased_until > {now}))
