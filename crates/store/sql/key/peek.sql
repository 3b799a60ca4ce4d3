-- The first messages of a key and how long they are, so that a claim can be bounded in rows and in bytes. `$4` skips messages
-- that have run out of attempts or time; one that a former holder was given may get its attempt back.
select id, length(payload) as bytes
from tenure.message
where lane = $2
  and key = $3
  and (
      not $4
      or ((expire_at is null or expire_at >= {now})
          and (
              token is not null
              or coalesce(attempts < coalesce(max_attempts, (select l.max_attempts from tenure.lane l where l.id = $2)), true)
          ))
  )
order by id
limit $5
