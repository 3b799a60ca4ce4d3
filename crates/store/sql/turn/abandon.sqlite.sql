-- No writable CTEs: the messages first, then the lease that they hang on.
update tenure.inbox
set token       = 0,
    visible_at  = case when $4 is null then min(visible_at, {now}) else {now} + $4 end,
    attempts    = max(0, attempts - $5),
    stray_looks = 0
where instance = $2
  and visible_at <= {now} + 3600000000
  and token = $3
  and exists (select 1 from tenure.instance i where i.id = $2 and i.token = $3);
select count(*) as done from tenure.instance where id = $2 and token = $3;
update tenure.instance
set token = 0, leased_until = 0
where id = $2 and token = $3
