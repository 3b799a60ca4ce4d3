select count(*) as tally
from tenure.archive
where (not $1 or outcome <> 'completed')
  and attempts >= $2
  and (cast($3 as bigint) is null or worker = $3)
