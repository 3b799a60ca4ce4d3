-- The first messages of a key and how long they are, so that a claim can be bounded in rows and in bytes.
select id, length(payload) as bytes
from tenure.message
where lane = $1
  and key = $2
order by id
limit $3
