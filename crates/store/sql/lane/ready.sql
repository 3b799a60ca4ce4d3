-- How many can be leased, as far as anybody wants to know: counting stops there.
select count(*) as ready
from (
    select 1
    from tenure.message m
    where m.lane = $2
      and m.lane > 0
      and {until} <= {now}
    limit $3
) r
