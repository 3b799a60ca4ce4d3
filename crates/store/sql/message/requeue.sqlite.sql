update tenure.message
set id           = $4,
    origin_id    = coalesce(origin_id, id),
    leased_until = 0,
    worker       = null
where id = $1
  and leased_until > 0
  and ($2 is null or attempts = $2)
  and ($3 is null or worker = $3)
returning $5 as n, id, lane
