-- Several steps: the first marks each row with the negated token if its lease is held, the last of them deletes what is
-- marked; then the next activities are leased.
{each $13}
update tenure.work
set token = -$14
where id = $13 and token = $14 and leased_until > {now};
{each $13}
update tenure.session
set active_at = {now}
where id = (select w.session from tenure.work w where w.id = $13 and w.token = -$14)
  and leased_until > {now};
{each $13}
insert into tenure.inbox (instance, visible_at, attempts, token, item)
select $15, {now}, 0, 0, $16
from tenure.work w
where w.id = $13 and w.token = -$14 and $16 is not null
  and exists (select 1 from tenure.instance x where x.id = $15);
{each $13}
delete from tenure.work
where id = $13 and token = -$14
returning 0 as part, $17 as id, null as token, null as attempts, null as item, null as born, null as turns;
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
returning 1 as part, id, token, attempts, item,
    (select i.born from tenure.instance i where i.id = instance) as born,
    (select i.turns from tenure.instance i where i.id = instance) as turns
