-- Messages have no key of their own: whoever sends them has just made their instances, in the same transaction.
insert into tenure.inbox (instance, visible_at, attempts, token, item)
select i.instance, i.visible_at, i.attempts, 0, i.item
from unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[]) with ordinality
    as i (instance, visible_at, attempts, item, n)
order by i.n
