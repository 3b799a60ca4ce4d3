-- No lateral joins, and no window functions in Turso. Otherwise as for PostgreSQL.
delete from tenure.key_lease
where token in (
    select k.token
    from (
        select l.id as above, coalesce((select min(n.id) from tenure.lane n where n.id > l.id), 9223372036854775807) as below
        from (select 0 as id union all select id from tenure.lane) l
    ) gap
    cross join tenure.key_lease k
    where gap.below > gap.above + 1
      and k.lane > gap.above
      and k.lane < gap.below
    limit $1
)
