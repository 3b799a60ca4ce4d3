-- Each row is found by its id, and the fence is checked on its newest version: an extension that runs at the same time moves
-- the row, and PostgreSQL checks the conditions again on what the extension left. (Rows located by ctid were missed then: 52
-- of 2,000 completes were refused while the lease was held.)
with done as (
    delete from tenure.message m
    using unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
        as i (id, attempt, worker, lane, token, n)
    where {held}
    returning i.n
),
{call $1}
select n from done
