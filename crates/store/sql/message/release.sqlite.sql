update tenure.message
set leased_until = 0,
    worker       = null,
    attempts     = attempts - $7
where {held $2}
returning $8 as n, id, lane
