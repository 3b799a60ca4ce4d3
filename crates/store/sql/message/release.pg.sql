-- Back to its place, at once. `uncount` takes the attempt back when no caller was given the message: the next lease has the same fence.
-- Rows are found as in `complete`.
with done as (
    update tenure.message m
    set leased_until = 0,
        worker       = null,
        attempts     = m.attempts - i.uncount
    from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::integer[], $8::bigint[])
        as i (id, attempt, worker, lane, token, uncount, n)
    where {held}
    returning i.n, m.id, m.lane
),
{call $1}
select n, id, lane from done
