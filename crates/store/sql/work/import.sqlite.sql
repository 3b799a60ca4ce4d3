-- Once for every activity, in order.
insert into tenure.work (due_at, leased_until, token, attempts, nonce, instance, execution, activity, session, tag, item)
select $7, 0, 0, $8, $1, $2, $3, $4, $5, $6, $9
where $1 is null
   or not exists (select 1 from tenure.work w where w.nonce = $1)
returning id
