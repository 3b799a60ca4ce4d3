-- No writable CTEs: the messages first, then the lease that they hang on. What still has its token then is dropped.
update tenure.inbox
set token       = 0,
    attempts    = max(0, attempts - 1),
    stray_looks = stray_looks + (visible_at <= {now}),
    visible_at  = case when visible_at <= {now} then {now} + min($5, $4 << min(stray_looks, 16)) else visible_at end
where instance = $2
  and visible_at <= {now} + 3600000000
  and token = $3
  and (visible_at > {now} or stray_looks < $6)
  and exists (select 1 from tenure.instance i where i.id = $2 and i.token = $3);
select (select count(*) from tenure.inbox m
        where m.instance = $2 and m.token = $3
          and exists (select 1 from tenure.instance i where i.id = $2 and i.token = $3)) as dropped,
       (select min(m.visible_at) from tenure.inbox m where m.instance = $2 and m.visible_at > {now}) - {now} as next,
       exists (select 1 from tenure.inbox m where m.instance = $2 and m.token <> $3 and m.visible_at <= {now}) as more;
delete from tenure.inbox
where instance = $2
  and token = $3
  and exists (select 1 from tenure.instance i where i.id = $2 and i.token = $3);
update tenure.instance
set token = 0, leased_until = 0
where id = $2 and token = $3
