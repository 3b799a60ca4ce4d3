-- Several steps: the first marks each row with the negated token if its lease is held, the last of them deletes what is
-- marked; then the next activities are leased.
{each $12}
update tenure.work
set token = -$13
where id = $12 and token = $13 and leased_until > {now};
{each $12}
update tenure.session
set active_at = {now}
where id = (select w.session from tenure.work w where w.id = $12 and w.token = -$13)
  and leased_until > {now};
{each $12}
insert into tenure.instance (id, born, execution, custom_version, turns, token, leased_until, acked, created_at, updated_at)
select $14, abs(random() / 2), 1, 0, 0, 0, 0, 0, {now}, {now}
from tenure.work w
where w.id = $12 and w.token = -$13 and $15 is not null
on conflict (id) do nothing;
{each $12}
insert into tenure.inbox (instance, visible_at, attempts, token, item)
select $14, {now}, 0, 0, $15
from tenure.work w
where w.id = $12 and w.token = -$13 and $15 is not null;
{each $12}
delete from tenure.work
where id = $12 and token = -$13
returning 0 as part, $16 as id, null as token, null as attempts, null as item;
update tenure.work
set token = $3 + id, leased_until = {now} + $4, attempts = attempts + 1
where $2
  and id in (
      select w.id
      from tenure.work w
      where w.due_at = 0
        and w.leased_until <= {now}
        and w.session is null
        and ($5 or (w.tag is null and $6) or w.tag in ($7, $8, $9, $10, $11))
      order by w.id
      limit $2
  )
returning 1 as part, id, token, attempts, item
