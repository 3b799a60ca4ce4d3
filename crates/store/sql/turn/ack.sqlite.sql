-- Several steps in one transaction: the first marks the instance with the negated token, every other one looks for that
-- mark, the last takes it away. A step that begins with {each $n} runs once for every row of the list that $n is of.
update tenure.instance
set name           = coalesce($5, name),
    version        = coalesce($6, version),
    parent         = case when name is null then $7 else parent end,
    created_at     = case when name is null then {now} else created_at end,
    pinned         = case when $4 > execution then $10 when $4 = execution then coalesce($10, pinned) else pinned end,
    execution      = max(execution, $4),
    custom_status  = case when $11 then $12 else custom_status end,
    custom_version = custom_version + $11,
    turns          = turns + 1,
    token          = -$3,
    leased_until   = 0,
    updated_at     = {now}
where id = $2
  and token = $3
  and leased_until > {now};
insert into tenure.execution as e (instance, id, status, output, pinned, events, started_at, completed_at)
select h.id, $4, coalesce($8, 'Running'), $9, $10, $15, h.updated_at, case when $8 <> 'Running' then h.updated_at end
from tenure.instance h
where h.id = $2 and h.token = -$3
on conflict (instance, id) do update
set status       = coalesce($8, e.status),
    output       = case when $8 is null then e.output else excluded.output end,
    pinned       = coalesce($10, e.pinned),
    events       = e.events + excluded.events,
    completed_at = case when $8 is null then e.completed_at else excluded.completed_at end;
{each $16}
insert into tenure.history (instance, execution, id, data)
select h.id, $4, $16, $17
from tenure.instance h
where h.id = $2 and h.token = -$3;
{each $18}
insert into tenure.work (due_at, leased_until, token, attempts, instance, execution, activity, session, tag, item)
select 0, 0, 0, 0, $18, $19, $20, $21, $22, $23
from tenure.instance h
where h.id = $2 and h.token = -$3;
{each $24}
delete from tenure.work
where instance = $24
  and execution = $25
  and activity = $26
  and exists (select 1 from tenure.instance h where h.id = $2 and h.token = -$3);
delete from tenure.inbox
where instance = $2
  and token = $3
  and exists (select 1 from tenure.instance h where h.id = $2 and h.token = -$3);
{each $27}
insert into tenure.instance (id, born, execution, custom_version, turns, token, leased_until, acked, created_at, updated_at)
select $27, abs(random() / 2), 1, 0, 0, 0, 0, 0, h.updated_at, h.updated_at
from tenure.instance h
where h.id = $2 and h.token = -$3
on conflict (id) do nothing;
{each $27}
insert into tenure.inbox (instance, visible_at, attempts, token, item)
select $27, coalesce($28, h.updated_at), 0, 0, $29
from tenure.instance h
where h.id = $2 and h.token = -$3;
update tenure.kv
set drafted = 1, draft = null, draft_at = {now} / 1000
where instance = $2
  and $13
  and exists (select 1 from tenure.instance h where h.id = $2 and h.token = -$3);
{each $30}
insert into tenure.kv (instance, key, value, updated_at, drafted, draft, draft_at)
select h.id, $30, null, 0, 1, $31, $32
from tenure.instance h
where h.id = $2 and h.token = -$3
on conflict (instance, key) do update
set drafted = 1, draft = excluded.draft, draft_at = excluded.draft_at;
delete from tenure.kv
where instance = $2
  and $14
  and drafted
  and draft is null
  and exists (select 1 from tenure.instance h where h.id = $2 and h.token = -$3);
update tenure.kv
set value = draft, updated_at = draft_at, drafted = 0, draft = null, draft_at = 0
where instance = $2
  and $14
  and drafted
  and exists (select 1 from tenure.instance h where h.id = $2 and h.token = -$3);
select (select h.born from tenure.instance h where h.id = $2 and h.token = -$3) as born,
       exists (select 1 from tenure.instance i where i.id = $2 and i.acked = $3) as already,
       exists (select 1 from tenure.inbox m where m.instance = $2 and m.token <> $3 and m.visible_at <= {now}) as more;
update tenure.instance
set token = 0, acked = $3
where id = $2 and token = -$3
