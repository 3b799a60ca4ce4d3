-- No writable CTEs: the row first, then the message.
insert into tenure.instance (id, born, execution, custom_version, turns, token, leased_until, acked, created_at, updated_at)
values ($2, abs(random() / 2), 1, 0, 0, 0, 0, 0, {now}, {now})
on conflict (id) do nothing;
insert into tenure.inbox (instance, visible_at, attempts, token, nonce, item)
select $2, {now} + coalesce($3, 0), 0, 0, $4, $5
where not exists (select 1 from tenure.inbox m where m.nonce = $4)
