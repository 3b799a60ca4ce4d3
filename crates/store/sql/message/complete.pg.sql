-- The rows are found one by one; one that changed meanwhile has another ctid, and is left alone.
delete from tenure.message m
using (
    select i.n, f.row
    from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) as i (id, attempt, worker, lane, n)
    cross join lateral {held} f
) held
where m.ctid = held.row
returning held.n
