delete from tenure.message
where {held $2}
returning $7 as n
