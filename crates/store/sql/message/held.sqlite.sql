-- SQLite has no arrays: one look for every fence.
select $6 as n, token
from tenure.message
where {held $1}
