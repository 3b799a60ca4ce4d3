-- How many can be leased, as far as anybody wants to know: counting stops there.
select count(*) as ready
from (
    select 1
    from tenure.message
    where lane = $2
      and lane > 0
      and leased_until <= {now}
    limit $3
) r
