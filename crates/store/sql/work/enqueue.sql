-- An activity whose enqueue is repeated after an unknown outcome is known by its nonce.
insert into tenure.work (due_at, leased_until, token, attempts, nonce, instance, execution, activity, session, tag, item)
select 0, 0, 0, 0, $1, $2, $3, $4, $5, $6, $7
where not exists (select 1 from tenure.work w where w.instance = $2 and w.nonce = $1)
