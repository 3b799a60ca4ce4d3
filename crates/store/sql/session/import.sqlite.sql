-- Once for every session.
insert into tenure.session (id, owner, leased_until, active_at)
values ($1, $2, $3, $4)
on conflict (id) do nothing
returning id
