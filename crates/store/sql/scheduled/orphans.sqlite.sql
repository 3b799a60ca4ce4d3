-- No lateral joins, and no window functions in Turso. Otherwise as for PostgreSQL.
delete from tenure.scheduled
where id in (
    select s.id
    from (
        select l.id as above, coalesce((select min(n.id) from tenure.lane n where n.id > l.id), 9223372036854775807) as below
        from (select 0 as id union all select id from tenure.lane) l
    ) gap
    cross join tenure.scheduled s
    where gap.below > gap.above + 1
      and s.lane > gap.above
      and s.lane < gap.below
    limit $1
)
