-- Which of these fences still hold. Rows are found as in `complete`.
select i.n
from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
    as i (id, attempt, worker, lane, token, n)
join tenure.message m on {held}
