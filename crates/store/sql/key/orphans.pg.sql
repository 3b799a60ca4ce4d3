-- Rows of keys in lanes that do not exist: see message/orphans.
delete from tenure.key_lease
where token = any (array(
    select w.token
    from (
        select l.id as above, lead(l.id, 1, 9223372036854775807) over (order by l.id) as below
        from (select 0 as id union all select id from tenure.lane) l
    ) gap
    cross join lateral (
        select k.token
        from tenure.key_lease k
        where k.lane > 0 and k.lane > gap.above and k.lane < gap.below
        order by k.lane, k.key
        limit $1
    ) w
    where gap.below > gap.above + 1
    limit $1
))
