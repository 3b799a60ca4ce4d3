-- Back to its place, at once. `uncount` takes the attempt back when nobody ever received the message.
-- Rows are found as in `complete`.
update tenure.message m
set leased_until = 0,
    worker       = null,
    attempts     = m.attempts - held.uncount
from (
    select i.n, i.uncount, f.row
    from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::integer[], $6::bigint[]) as i (id, attempt, worker, lane, uncount, n)
    cross join lateral {held} f
) held
where m.ctid = held.row
returning held.n, m.id, m.lane
