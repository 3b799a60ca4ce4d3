-- No lateral joins, and no window functions in Turso. Otherwise as for PostgreSQL.
delete from tenure.archive
where id in (
    select a.id
    from (
        select q.id as above, coalesce((select min(n.id) from tenure.queue n where n.id > q.id), 9223372036854775807) as below
        from (select 0 as id union all select id from tenure.queue) q
    ) gap
    cross join tenure.archive a
    where gap.below > gap.above + 1
      and a.queue > gap.above
      and a.queue < gap.below
    limit $1
)
