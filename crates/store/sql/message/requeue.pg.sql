-- To the tail: the same message under a new id, which is its new position.
with tx as materialized (select txid_current() as id)
update tenure.message m
set id           = coalesce(i.new_id, nextval('tenure.message_id')),
    origin_id    = coalesce(m.origin_id, m.id),
    leased_until = 0,
    worker       = null
from tx
cross join unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) as i (id, attempt, worker, new_id, n)
where tx.id > 0
  and m.id = i.id
  and m.leased_until > 0
  and (i.attempt is null or m.attempts = i.attempt)
  and (i.worker is null or m.worker = i.worker)
returning i.n, m.id, m.lane
