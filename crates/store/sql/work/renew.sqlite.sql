-- No writable CTEs: the session first, on the same condition.
update tenure.session
set active_at = {now}
where id = (select w.session from tenure.work w where w.id = $2 and w.token = $3 and w.leased_until > {now})
  and leased_until > {now};
update tenure.work
set leased_until = {now} + $4
where id = $2 and token = $3 and leased_until > {now}
returning 1 as done
