-- One writer at a time: ids are committed in order, so the floor may rise at once.
select
    (select min(id) from (
        select min(id) as id from tenure.message where lane = $1 and lane > 0 and id >= $2
        union all
        select min(id) from tenure.scheduled where lane = $1 and id >= $2 and keep_place
    ) live) as floor,
    0 as running,
    0 as started
