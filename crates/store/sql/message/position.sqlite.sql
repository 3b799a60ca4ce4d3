-- One row at a time.
select $2 as n, id from tenure.message where id = $1 and origin_id is null
union all
select $2 as n, id from tenure.message where origin_id = $1
