select
    k.id, k.user_id, k.scope, k.name, k.prefix, k.hash, k.expires_at, k.last_used_at, k.created_at,
    (k.expires_at is not null and k.expires_at <= {now}) as expired
from tenure.api_key k
where k.id >= $2
  and (cast($3 as text) is null or k.user_id = $3)
order by k.id
limit $4
