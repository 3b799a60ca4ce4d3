-- One writer at a time: positions are committed in order, so a floor that was seen is believed at the next look.
select
    (select min(id) from (
        select min(id) as id from tenure.message where lane = $1 and lane > 0 and id >= $2
        union all
        select min(id) from tenure.scheduled where lane = $1 and id >= $2 and keep_place
    ) live) as floor,
    0 as running,
    cast($3 as bigint) as writers,
    case when $4 then 0 end as started
