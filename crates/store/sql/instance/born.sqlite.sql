-- Once for every instance.
select id, born
from tenure.instance
where id = $1
