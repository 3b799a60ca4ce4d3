update tenure.instance
set leased_until = {now} + $4
where id = $2
  and token = $3
  and leased_until > {now}
