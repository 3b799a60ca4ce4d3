-- Once for every message, in order.
insert into tenure.inbox (instance, visible_at, attempts, token, item)
values ($1, $2, $3, 0, $4)
