-- Finished messages of queues that do not exist, which a completion left that committed after the deletion: see message/orphans.
delete from tenure.archive
where id = any (array(
    select w.id
    from (
        select q.id as above, lead(q.id, 1, 9223372036854775807) over (order by q.id) as below
        from (select 0 as id union all select id from tenure.queue) q
    ) gap
    cross join lateral (
        select a.id
        from tenure.archive a
        where a.queue > 0 and a.queue > gap.above and a.queue < gap.below
        order by a.queue, a.outcome, a.finished_at, a.id
        limit $1
    ) w
    where gap.below > gap.above + 1
    limit $1
))
