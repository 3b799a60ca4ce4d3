-- To the tail: the same message under a new id, which is its new position. Rows are found as in `complete`.
with tx as materialized (select txid_current() as id),
     done as (
         update tenure.message m
         set id           = case when (select id from tx) > 0 then coalesce(i.new_id, nextval('tenure.message_id')) end,
             origin_id    = coalesce(m.origin_id, m.id),
             leased_until = 0,
             worker       = null
         from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
             as i (id, attempt, worker, lane, token, new_id, n)
         where {held}
         returning i.n, m.id, m.lane
     ),
     {call $1}
select n, id, lane from done
