-- Compare-and-set: whoever comes second finds the key held and looks for another.
insert into tenure.key_lease as k (lane, key, token, worker, leased_until)
select l.id, $3, $6, $5, {now} + coalesce($4, l.lease_us)
from tenure.lane l
where l.id = $2
on conflict (lane, key) do update
set token = excluded.token, worker = excluded.worker, leased_until = excluded.leased_until
where k.leased_until <= {now}
returning token, leased_until
