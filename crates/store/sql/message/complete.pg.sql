-- The rows are found one by one through the lateral subquery, which `offset 0` keeps from being flattened: whatever the
-- statistics say, no plan can begin with the table. A row that changed meanwhile has another ctid, and is left alone.
delete from tenure.message m
using (
    select i.n, f.row
    from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) as i (id, attempt, worker, n)
    cross join lateral (
        select ctid as row
        from tenure.message
        where id = i.id
          and leased_until > 0
          and (i.attempt is null or attempts = i.attempt)
          and (i.worker is null or worker = i.worker)
        offset 0
    ) f
) held
where m.ctid = held.row
returning held.n
