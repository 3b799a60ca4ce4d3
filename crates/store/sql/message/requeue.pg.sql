-- To the tail: the same message under a new id, which is its new position. Rows are found as in `complete`.
with tx as materialized (select txid_current() as id)
update tenure.message m
set id           = case when (select id from tx) > 0 then coalesce(held.new_id, nextval('tenure.message_id')) end,
    origin_id    = coalesce(m.origin_id, m.id),
    leased_until = 0,
    worker       = null
from (
    select i.n, i.new_id, f.row
    from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]) as i (id, attempt, worker, lane, new_id, n)
    cross join lateral {held} f
) held
where m.ctid = held.row
returning held.n, m.id, m.lane
