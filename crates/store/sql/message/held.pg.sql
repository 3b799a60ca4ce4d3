-- Which of these fences still hold, and the token of the key with which the message is leased. Rows are found as in `complete`.
select i.n, m.token
from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
    as i (id, attempt, worker, lane, token, n)
join tenure.message m on {held}
