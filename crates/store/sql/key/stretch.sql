update tenure.message
set leased_until = $3
where lane = $1
  and key = $2
  and leased_until > 0
