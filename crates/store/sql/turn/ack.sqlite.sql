-- Several steps in one transaction: the first marks each instance with the negated token, every other one looks for that
-- mark, the last takes it away. A step that begins with {each $n} runs once for every row of the list that $n is of.
{each $3}
update tenure.instance
set name           = coalesce($6, name),
    version        = coalesce($7, version),
    parent         = case when name is null then $8 else parent end,
    created_at     = case when name is null then {now} else created_at end,
    pinned         = case when $5 > execution then $11 when $5 = execution then coalesce($11, pinned) else pinned end,
    execution      = max(execution, $5),
    custom_status  = case when $12 then $13 else custom_status end,
    custom_version = custom_version + $12,
    turns          = turns + 1,
    token          = -$4,
    leased_until   = 0,
    updated_at     = {now}
where id = $3
  and token = $4
  and leased_until > {now};
{each $3}
insert into tenure.execution as e (instance, id, status, output, pinned, events, started_at, completed_at)
select h.id, $5, coalesce($9, 'Running'), $10, $11, $16, h.updated_at, case when $9 <> 'Running' then h.updated_at end
from tenure.instance h
where h.id = $3 and h.token = -$4
on conflict (instance, id) do update
set status       = case when excluded.completed_at is null then e.status else excluded.status end,
    output       = case when excluded.completed_at is null then e.output else excluded.output end,
    pinned       = coalesce(excluded.pinned, e.pinned),
    events       = e.events + excluded.events,
    completed_at = coalesce(excluded.completed_at, e.completed_at);
{each $17}
insert into tenure.history (instance, execution, id, data)
select h.id, $18, $19, $20
from tenure.instance h
where h.id = $17 and h.token < 0;
{each $21}
insert into tenure.work (due_at, leased_until, token, attempts, instance, execution, activity, session, tag, item)
select 0, 0, 0, 0, $22, $23, $24, $25, $26, $27
from tenure.instance h
where h.id = $21 and h.token < 0;
{each $28}
delete from tenure.work
where instance = $29
  and execution = $30
  and activity = $31
  and exists (select 1 from tenure.instance h where h.id = $28 and h.token < 0);
{each $32}
insert into tenure.instance (id, born, execution, custom_version, turns, token, leased_until, acked, created_at, updated_at)
select $33, abs(random() / 2), 1, 0, 0, 0, 0, 0, h.updated_at, h.updated_at
from tenure.instance h
where h.id = $32 and h.token < 0
on conflict (id) do nothing;
{each $32}
insert into tenure.inbox (instance, visible_at, attempts, token, item)
select $33, coalesce($34, h.updated_at), 0, 0, $35
from tenure.instance h
where h.id = $32 and h.token < 0;
{each $3}
update tenure.kv
set drafted = 1, draft = null, draft_at = {now} / 1000
where instance = $3
  and $14
  and exists (select 1 from tenure.instance h where h.id = $3 and h.token = -$4);
{each $36}
insert into tenure.kv (instance, key, value, updated_at, drafted, draft, draft_at)
select h.id, $37, null, 0, 1, $38, $39
from tenure.instance h
where h.id = $36 and h.token < 0
on conflict (instance, key) do update
set drafted = 1, draft = excluded.draft, draft_at = excluded.draft_at;
{each $3}
delete from tenure.kv
where instance = $3
  and $15
  and drafted
  and draft is null
  and exists (select 1 from tenure.instance h where h.id = $3 and h.token = -$4);
{each $3}
update tenure.kv
set value = draft, updated_at = draft_at, drafted = 0, draft = null, draft_at = 0
where instance = $3
  and $15
  and drafted
  and exists (select 1 from tenure.instance h where h.id = $3 and h.token = -$4);
{each $3}
delete from tenure.inbox
where instance = $3
  and visible_at <= {now} + 3600000000
  and token = $4
  and exists (select 1 from tenure.instance h where h.id = $3 and h.token = -$4);
{each $3}
select $3 as instance,
       (select h.born from tenure.instance h where h.id = $3 and h.token = -$4) as born,
       (select h.turns from tenure.instance h where h.id = $3 and h.token = -$4) as turns,
       exists (select 1 from tenure.instance i where i.id = $3 and i.acked = $4) as already,
       exists (select 1 from tenure.inbox m where m.instance = $3 and m.token <> $4 and m.visible_at <= {now}) as more;
{each $3}
update tenure.instance
set token = 0, acked = $4
where id = $3 and token = -$4
