-- Several steps: the first marks the row with the negated token if its lease is held, the last deletes what is marked.
update tenure.work
set token = -$3
where id = $2 and token = $3 and leased_until > {now};
update tenure.session
set active_at = {now}
where id = (select w.session from tenure.work w where w.id = $2 and w.token = -$3)
  and leased_until > {now};
insert into tenure.instance (id, born, execution, custom_version, turns, token, leased_until, acked, created_at, updated_at)
select $4, abs(random() / 2), 1, 0, 0, 0, 0, 0, {now}, {now}
from tenure.work w
where w.id = $2 and w.token = -$3 and $5 is not null
on conflict (id) do nothing;
insert into tenure.inbox (instance, visible_at, attempts, token, item)
select $4, {now}, 0, 0, $5
from tenure.work w
where w.id = $2 and w.token = -$3 and $5 is not null;
delete from tenure.work
where id = $2 and token = -$3
returning $6 as n
