-- No writable CTEs: the session first, on the same condition.
delete from tenure.session
where id = (select w.session from tenure.work w where w.id = $2 and w.token = $3)
  and active_at = $6
  and not exists (
      select 1 from tenure.work w
      where w.session = tenure.session.id and w.id <> $2 and w.leased_until > {now});
update tenure.work
set token        = 0,
    leased_until = 0,
    attempts     = case when $5 and attempts > 0 then attempts - 1 else attempts end,
    due_at       = case when $4 > 0 then {now} + $4 else 0 end
where due_at = 0
  and id = $2
  and token = $3
returning 1 as done
