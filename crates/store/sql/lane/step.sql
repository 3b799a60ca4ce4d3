-- Where a walk over a lane that began at one position is after so many messages; null: at the end.
select (
    select id
    from tenure.message
    where lane = $1
      and lane > 0
      and id >= $2
    order by id
    limit 1
    offset $3
) as id
