-- Where the next batch of dedupe keys whose window has passed ends, after `$2`.
select max(w.until) as upto
from (
    select d.until
    from tenure.dedupe d
    where d.until > $2
      and d.until <= {now}
    order by d.until
    limit $3
) w
