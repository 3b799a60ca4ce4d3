update tenure.message
set leased_until = 0,
    worker       = null,
    attempts     = attempts - $5
where id = $1
  and leased_until > 0
  and ($2 is null or attempts = $2)
  and ($3 is null or worker = $3)
  and ($4 is null or lane = $4)
returning $6 as n, id, lane
