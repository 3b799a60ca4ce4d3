-- As for messages: see message/orphans.
delete from tenure.scheduled
where id = any (array(
    select w.id
    from (
        select l.id as above, lead(l.id, 1, 9223372036854775807) over (order by l.id) as below
        from (select 0 as id union all select id from tenure.lane) l
    ) gap
    cross join lateral (
        select s.id
        from tenure.scheduled s
        where s.lane > 0 and s.lane > gap.above and s.lane < gap.below
        order by s.lane, s.id
        limit $1
    ) w
    where gap.below > gap.above + 1
    limit $1
))
