-- For each question the latest execution, or the one that is asked for: only what comes after what the asker knows, if that
-- is still the same instance and execution and is still there (after a fail-over it may be lost). Part 0 says which they are, and the custom status if it is newer than the one
-- last seen; part 2 is an event.
with wanted as materialized (
    select q.n as question, i.id, i.born, coalesce(q.execution, i.execution) as execution, i.custom_version,
           case when i.name is not null and i.custom_version > q.seen then i.custom_status end as custom_status,
           i.name is not null and i.custom_version > q.seen as newer,
           case when q.born is null then q.last
                when i.born = q.born and coalesce(q.execution, i.execution) = q.known and exists (
                    select 1 from tenure.history h where h.instance = i.id and h.execution = q.known and h.id = q.last) then q.last
                else 0 end as last
    from unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
        as q (instance, execution, born, known, last, seen, n)
    cross join lateral (
        select x.id, x.born, x.name, x.execution, x.custom_version, x.custom_status
        from tenure.instance x
        where x.id = q.instance
        offset 0
    ) i
)
select w.question as n, 0 as part, w.born as id, w.execution, w.custom_version, w.newer, w.custom_status as data
from wanted w
union all
select w.question, 2, h.id, null, null, null, h.data
from wanted w
join tenure.history h on h.instance = w.id and h.execution = w.execution and h.id > w.last
