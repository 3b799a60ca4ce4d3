-- Closes calls whose reply was lost: waits for one that is still running, and keeps one that has not begun from being carried
-- out. A call that was carried out keeps its record.
insert into tenure.call (token, closed)
select token, true
from unnest($1::bigint[]) as i (token)
on conflict (token) do nothing
