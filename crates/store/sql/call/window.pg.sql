-- Where the next batch of records ends, after `$1`: the table has no index on the time, which every call would have to write.
select max(w.token) as upto
from (select c.token from tenure.call c where c.token > $1 order by c.token limit $2) w
