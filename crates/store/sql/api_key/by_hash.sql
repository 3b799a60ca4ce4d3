-- A key without its user opens nothing.
select
    k.id, k.user_id, k.scope, k.name, k.prefix, k.hash, k.expires_at, k.last_used_at, k.created_at,
    (k.expires_at is not null and k.expires_at <= {now}) as expired
from tenure.api_key k
join tenure.users u on u.id = k.user_id
where k.hash = $2
