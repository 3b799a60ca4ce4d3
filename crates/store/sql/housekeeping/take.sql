-- Compare-and-set: one process has the turn until `$3` has passed since it took or renewed it. While the turn is taken, this
-- writes and locks nothing.
insert into tenure.housekeeping as h (id, holder, until)
select 1, $2, {now} + $3
where not exists (select 1 from tenure.housekeeping t where t.id = 1 and t.until > {now})
on conflict (id) do update
set holder = excluded.holder, until = excluded.until
where h.until <= {now}
returning holder
