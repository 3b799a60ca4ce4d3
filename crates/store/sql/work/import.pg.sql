-- Activities of instances that were made in the same transaction have no nonce; others are known by theirs.
insert into tenure.work (due_at, leased_until, token, attempts, nonce, instance, execution, activity, session, tag, item)
select i.due_at, 0, 0, i.attempts, i.nonce, i.instance, i.execution, i.activity, i.session, i.tag, i.item
from unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::bigint[], $8::bigint[],
            $9::text[]) with ordinality
    as i (nonce, instance, execution, activity, session, tag, due_at, attempts, item, n)
where i.nonce is null
   or not exists (select 1 from tenure.work w where w.nonce = i.nonce)
order by i.n
returning id
