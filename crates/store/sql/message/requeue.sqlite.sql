update tenure.message
set id           = $7,
    origin_id    = coalesce(origin_id, id),
    leased_until = 0,
    worker       = null
where {held $2}
returning $8 as n, id, lane
