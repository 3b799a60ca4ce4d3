insert into tenure.session (id, owner, leased_until, active_at)
select i.id, i.owner, i.leased_until, i.active_at
from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) as i (id, owner, leased_until, active_at)
on conflict (id) do nothing
returning id
