-- Compare-and-set: a second claim finds the key held and looks for another. `before` is not null when the key was taken over
-- from a holder whose lease had expired: the messages up to there may still be leased to it. The worker is checked again: it may
-- have been stopped after the key was picked.
insert into tenure.key_lease as k (lane, key, token, worker, leased_until, last)
select l.id, $3, $7, $5, {now} + $4, $6
from tenure.lane l
where l.id = $2
  and (cast($5 as bigint) is null or exists (select 1 from tenure.worker w where w.id = $5 and w.status = 'ready'))
on conflict (lane, key) do update
set token = excluded.token, worker = excluded.worker, leased_until = excluded.leased_until, last = excluded.last,
    before = coalesce(k.last, 9223372036854775807)
where k.leased_until <= {now}
returning token, leased_until, before
